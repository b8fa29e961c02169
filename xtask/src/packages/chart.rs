//! The Helm chart: linted and rendered by Helm's own code, its manifests checked by the schemas of
//! Kubernetes, and its configuration by the binary.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::lint::has;
use crate::manifest;
use crate::release::Built;

const CHART: &str = "packages/helm/quell";
/// The oldest release that the chart allows, and the newest that the validator knows.
const KUBERNETES: [&str; 2] = ["1.25", "1.37"];

/// Values, and what comes of them: a text of the manifests, or a part of the error.
type Case = (&'static str, Value, Result<&'static str, &'static str>);

fn cases() -> [Case; 8] {
    let token = json!({"value": "secret"});
    let config = "[tasks.t]\nexec = { command = [\"/usr/bin/quell\", \"--version\"] }\n";
    let database = json!({"url": "postgres://quell@db/app"});
    [
        ("one server", json!({"token": token}), Ok("storage: 1Gi")),
        (
            "tasks",
            json!({"token": token, "config": config, "serverConfig": "max_body = \"2MiB\"\n"}),
            Ok("[tasks.t]"),
        ),
        (
            "several servers on a database",
            json!({
                "token": {"existingSecret": "mine", "key": "quell"}, "store": database, "replicas": 3,
                "persistence": {"enabled": false}, "secrets": ["hooks"], "allowedHosts": ["q.example.com"],
                "envFrom": [{"secretRef": {"name": "database"}}], "env": [{"name": "QUELL_LOG", "value": "debug"}],
                "nodeSelector": {"disk": "fast"}, "podAnnotations": {"a": "b"}, "imagePullSecrets": [{"name": "hub"}],
                "tolerations": [{"key": "k", "operator": "Exists"}], "podLabels": {"team": "a"},
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
            }),
            Ok("secretName: mine"),
        ),
        ("no token", json!({}), Err("set token.existingSecret or token.value")),
        (
            "a file for several",
            json!({"token": token, "replicas": 2}),
            Err("2 pods would each have a store"),
        ),
        (
            "a file without a volume",
            json!({"token": token, "persistence": {"enabled": false}}),
            Err("would be lost with its pod"),
        ),
        (
            "memory",
            json!({"token": token, "store": {"url": "memory:"}}),
            Err("loses accepted jobs"),
        ),
        (
            "a typo",
            json!({"token": token, "replica": 2}),
            Err("additional properties 'replica' not allowed"),
        ),
    ]
}

/// Lints and renders it, and returns the manifests of the cases that render.
pub(super) fn lint(root: &Path) -> anyhow::Result<Vec<Vec<Value>>> {
    let version = manifest::version(root)?;
    has(root, &format!("{CHART}/Chart.yaml"), &format!("appVersion: \"{version}\""))?;
    let cases = cases();
    let values: Vec<&Value> = cases.iter().map(|(_, values, _)| values).collect();
    let mut python = quell_services::python_with_helm()?;
    python.args(["-c", include_str!("render.py"), CHART]).current_dir(root);
    let found: Value = serde_json::from_str(&pipe(python, &serde_json::to_string(&values)?)?)?;
    ensure!(found["lint"] == json!([]), "{CHART}: {}", found["lint"]);
    let mut manifests = Vec::new();
    for (index, (name, _, expected)) in cases.iter().enumerate() {
        let rendered = &found["rendered"][index];
        match (expected, rendered["files"].as_object(), rendered["error"].as_str()) {
            (Ok(needle), Some(files), None) => {
                let files = files.iter().filter(|(file, _)| file.ends_with(".yaml"));
                let texts: Vec<&str> = files.filter_map(|(_, text)| text.as_str()).collect();
                let text = texts.join("\n---\n");
                ensure!(text.contains(needle), "{CHART}, {name}: no `{needle}` in\n{text}");
                manifests.push(validate(root, &text).with_context(|| format!("{CHART}, {name}"))?);
            }
            (Err(needle), None, Some(error)) if error.contains(needle) => {}
            _ => bail!("{CHART}, {name}: {expected:?} was expected, not {rendered}"),
        }
    }
    Ok(manifests)
}

fn validate(root: &Path, text: &str) -> anyhow::Result<Vec<Value>> {
    let mut python = quell_services::python_with_kubernetes()?;
    python.args(["-c", include_str!("validate.py")]).args(KUBERNETES).current_dir(root);
    Ok(serde_json::from_str(&pipe(python, text)?)?)
}

/// Runs the command with this standard input and returns its standard output.
fn pipe(mut command: Command, input: &str) -> anyhow::Result<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("start Python")?;
    let mut stdin = child.stdin.take().context("Python has no standard input")?;
    // It reads everything before it prints.
    stdin.write_all(input.as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// The binary accepts the configurations that the chart renders.
pub(super) fn check(root: &Path, built: &Built) -> anyhow::Result<()> {
    let folder = crate::package::target(root).join("chart");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let token = folder.join("token");
    fs::write(&token, "a token of the chart's test")?;
    // As the chart mounts it.
    fs::set_permissions(&token, fs::Permissions::from_mode(0o440))?;
    for manifests in lint(root)? {
        let map = manifests.iter().find(|manifest| manifest["kind"] == "ConfigMap");
        let config = map.and_then(|map| map["data"]["quell.toml"].as_str());
        // The paths are those of a pod.
        let config = config.context("the chart renders no quell.toml")?;
        let config = config.replace("/etc/quell/token/token", &token.display().to_string());
        let config = config.replace("/var/lib/quell", &folder.display().to_string());
        let file = folder.join("quell.toml");
        fs::write(&file, config.replace("/usr/bin/quell", &built.binary.display().to_string()))?;
        let mut serve = Command::new(&built.binary);
        crate::run::run(root, serve.args(["serve", "--check", "--config"]).arg(&file))?;
    }
    Ok(())
}
