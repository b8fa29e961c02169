//! The image: built by buildah, examined, and started by podman as it would be in production.
//!
//! Containers here have no network but their own loopback, so they take no port of the machine.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use quell_services::{Papers, Website};
use serde_json::Value;
use tempfile::TempDir;

use crate::manifest;
use crate::release::{self, Built};
use crate::run::{answers, output, run};
use crate::test::tell;

/// The largest image, in bytes.
const MAX_BYTES: u64 = 60_000_000;
const DEADLINE: Duration = Duration::from_secs(60);

pub(super) fn check(root: &Path, built: &Built) -> anyhow::Result<()> {
    let wanted = [
        ("buildah", "buildah"),
        ("podman", "podman"),
        ("runc", "runc"),
        ("iptables", "iptables"),
        ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ];
    let missing = wanted.iter().filter(|(program, _)| !answers(program, &["--version"]));
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        quell_services::install(&missing)?;
    }
    let store = Store::new(format!("quell:{}", manifest::version(root)?))?;
    store.build(&release::folder(root).join("image"), built)?;
    store.examine()?;
    store.serve()?;
    store.trust()?;
    store.compose(root, built)
}

/// Images and containers of their own, in a temporary folder.
struct Store {
    place: TempDir,
    image: String,
}

impl Store {
    fn new(image: String) -> anyhow::Result<Self> {
        let place = tempfile::Builder::new().prefix("quell-image-").tempdir()?;
        Ok(Store { place, image })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["--storage-driver", "vfs", "--root"]).arg(self.place.path().join("root"));
        command.arg("--runroot").arg(self.place.path().join("run"));
        command
    }

    fn podman(&self, args: &[&str]) -> Command {
        let mut command = self.command("podman");
        // Machines without systemd have neither of its defaults.
        command.args(["--runtime", "runc", "--cgroup-manager", "cgroupfs"]).args(args);
        command
    }

    fn build(&self, context: &Path, built: &Built) -> anyhow::Result<()> {
        let mut build = self.command("buildah");
        // The format of Docker has health checks, and that of OCI has none.
        build.args(["build", "--isolation", "chroot", "--format", "docker", "--tag", &self.image]);
        build.args(["--platform", &format!("linux/{}", built.arch.name), "."]);
        run(context, &mut build)
    }

    /// Its size, its user, and that the server is the only program in it.
    fn examine(&self) -> anyhow::Result<()> {
        let found = output(&mut self.podman(&["image", "inspect", &self.image]))?;
        let found: Value = serde_json::from_slice(&found)?;
        let bytes = found[0]["Size"].as_u64().context("the image has no size")?;
        ensure!(bytes <= MAX_BYTES, "the image has {bytes} bytes, at most {MAX_BYTES}");
        let user = found[0]["Config"]["User"].as_str();
        ensure!(user == Some("10001:10001"), "the image runs as {user:?}");
        ensure!(!found[0]["Healthcheck"].is_null(), "the image has no health check: {found}");
        let name = self.created()?;
        let tar = self.place.path().join("image.tar");
        let mut export = self.podman(&["export", &name, "--output"]);
        run(self.place.path(), export.arg(&tar))?;
        let mut list = Command::new("tar");
        let listed = output(list.args(["--list", "--verbose", "--file"]).arg(&tar))?;
        let listed = String::from_utf8(listed)?;
        let programs: Vec<&str> = listed.lines().filter(|line| is_program(line)).collect();
        let is_server = |line: &&str| line.ends_with(" usr/bin/quell");
        ensure!(
            programs.len() == 1 && programs.iter().all(is_server),
            "the image has other programs than the server:\n{}",
            programs.join("\n")
        );
        output(&mut self.podman(&["rm", &name]))?;
        tell(&format!("the image has {} MB, and one program", bytes / 1_000_000));
        Ok(())
    }

    fn created(&self) -> anyhow::Result<String> {
        let name = output(&mut self.podman(&["create", "--network", "none", &self.image]))?;
        Ok(String::from_utf8(name)?.trim().to_owned())
    }

    /// The server in a container that may write its volume alone: it is healthy, keeps its store over a
    /// restart, and ends in order.
    fn serve(&self) -> anyhow::Result<()> {
        let mut start = self.podman(&["run", "--detach", "--name", "quell", "--network", "none"]);
        start.args(["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"]);
        // Without these, podman asks for limits above those of some machines.
        start.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]);
        // podman has its timers from systemd: `healthcheck run` below is without.
        start.args(["--health-interval", "disable", "--env", "QUELL_TOKEN=secret"]);
        start.args(["--volume", "data:/var/lib/quell", &self.image]);
        let begun = Instant::now();
        output(&mut start)?;
        let took = self.until_healthy(begun)?;
        tell(&format!("the container was healthy after {} ms", took.as_millis()));
        run(self.place.path(), &mut self.podman(&["healthcheck", "run", "quell"]))?;
        let id = output(&mut self.podman(&["top", "quell", "huser"]))?;
        let id = String::from_utf8(id)?;
        ensure!(id.contains("10001") && !id.contains("root"), "the server runs as {id}");
        let ask = ["exec", "quell", "/usr/bin/quell", "queue"];
        output(&mut self.podman(&[&ask[..], &["set", "kept", "--concurrency", "1"]].concat()))?;
        output(&mut self.podman(&["stop", "--time", "45", "quell"]))?;
        let state = ["inspect", "--format", "{{.State.ExitCode}}", "quell"];
        let status = String::from_utf8(output(&mut self.podman(&state))?)?;
        ensure!(status.trim() == "0", "the server ended with status {}", status.trim());
        output(&mut self.podman(&["start", "quell"]))?;
        self.until_healthy(Instant::now())?;
        let queues = output(&mut self.podman(&[&ask[..], &["list"]].concat()))?;
        let queues = String::from_utf8(queues)?;
        ensure!(queues.contains("kept"), "the volume did not keep the store: {queues}");
        output(&mut self.podman(&["rm", "--force", "--time", "45", "quell"]))?;
        Ok(())
    }

    fn until_healthy(&self, begun: Instant) -> anyhow::Result<Duration> {
        loop {
            let asked = output(&mut self.podman(&["exec", "quell", "/usr/bin/quell", "health"]));
            match asked {
                Ok(_) => return Ok(begun.elapsed()),
                Err(error) if begun.elapsed() > DEADLINE => {
                    let log = output(&mut self.podman(&["logs", "quell"])).unwrap_or_default();
                    bail!(
                        "the container is not healthy: {error}\n{}",
                        String::from_utf8_lossy(&log)
                    );
                }
                // Each question is a process, which takes long enough.
                Err(_) => {}
            }
        }
    }

    /// The image reaches HTTPS hosts: it has authorities, and refuses a host that none of them vouches for.
    fn trust(&self) -> anyhow::Result<()> {
        let papers = Papers::new()?;
        let website = Website::start(&papers, "/v1/healthz", r#"{"status":"ok"}"#)?;
        let authority = format!("{}:/ca.pem:ro", papers.path("ca.pem")?);
        let ask = |more: &[&str]| {
            let mut ask = self.podman(&["run", "--rm", "--network", "host"]);
            ask.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]);
            ask.args(["--health-interval", "disable"]).args(more);
            output(ask.args([&self.image, "health", "--server", &website.url()]))
        };
        match ask(&[]) {
            Err(error) if error.to_string().contains("certificate is not trusted") => {}
            other => bail!("a host with an unknown authority was not refused: {other:?}"),
        }
        let trusted = ["--env", "SSL_CERT_FILE=/ca.pem", "--volume", &authority];
        let answer = ask(&trusted)?;
        ensure!(answer == b"ok\n", "{}", String::from_utf8_lossy(&answer));
        Ok(())
    }
}

impl Store {
    /// The Compose file starts the image, and the server answers on the published port.
    fn compose(&self, root: &Path, built: &Built) -> anyhow::Result<()> {
        let place = self.place.path();
        let (settings, storage) = (place.join("containers.conf"), place.join("storage.conf"));
        let networks = place.join("networks");
        let text = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
             [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n\
             [network]\nnetwork_config_dir = {networks:?}\n"
        );
        std::fs::write(&settings, text)?;
        let (images, state) = (place.join("root"), place.join("run"));
        let text =
            format!("[storage]\ndriver = \"vfs\"\ngraphroot = {images:?}\nrunroot = {state:?}\n");
        std::fs::write(&storage, text)?;
        let mut compose = Command::new("unshare");
        compose.args(["--net", "sh", "-c", include_str!("compose.sh"), "compose.sh"]);
        compose.arg(&built.binary).current_dir(root);
        compose.env("CONTAINERS_CONF", settings).env("CONTAINERS_STORAGE_CONF", storage);
        compose.env("PYTHONPATH", quell_services::podman_compose()?);
        compose.env("QUELL_IMAGE", format!("localhost/{}", self.image));
        compose.env("QUELL_TOKEN", "secret").env("QUELL_PORT", "7777");
        let shown = String::from_utf8(output(&mut compose)?)?;
        ensure!(shown.contains("ok\n"), "Compose started no server: {shown}");
        tell("the Compose file was started");
        Ok(())
    }
}

/// A line of `tar --list --verbose` of a file that can be executed.
fn is_program(line: &str) -> bool {
    line.starts_with('-') && line.split(' ').next().is_some_and(|mode| mode.contains(['x', 's']))
}

impl Drop for Store {
    fn drop(&mut self) {
        // It may have ended, or never begun.
        let _ended = output(&mut self.podman(&["rm", "--all", "--force", "--time", "0"]));
        let _removed = std::fs::remove_dir_all(self.place.path());
    }
}
