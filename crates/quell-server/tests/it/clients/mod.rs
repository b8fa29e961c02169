//! The clients for Python and TypeScript: their own tests, the same against this server, and their
//! packages as users install them. `kills` runs their workers among servers that are killed.

mod kills;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::served::serve;

/// The tasks that both clients' live tests name.
const TASKS: &str = r#"
[tasks.echo]
pull = true
[tasks.slow]
pull = true
[tasks.keyed]
pull = true
key = "{{ id }}"
debounce = { min = "200ms", max = "2s" }
[tasks.flaky]
pull = true
retry = { min_backoff = "100ms", max_attempts = 3 }
"#;

/// A client's folder.
fn folder(client: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients").join(client)
}

/// A copy of a client's folder: installing from it leaves files there.
fn copy_of(client: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_into(&folder(client), copy.path());
    copy
}

fn copy_into(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_into(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Python with the client's sources.
fn python() -> Command {
    let mut python = quell_services::python_3().unwrap();
    python.env("PYTHONPATH", folder("python").join("src"));
    python
}

/// Runs a program to its end, which is to be a success.
async fn succeeds(command: Command) {
    let shown = format!("{command:?}");
    let output = tokio::process::Command::from(command).kill_on_drop(true).output().await.unwrap();
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    assert!(output.status.success(), "{shown}: {}", String::from_utf8_lossy(&text));
}

#[tokio::test]
async fn the_client_for_python_passes_its_tests() {
    let mut tests = python();
    tests.args(["-m", "unittest"]).current_dir(folder("python").join("tests"));
    succeeds(tests).await;
}

#[tokio::test]
async fn the_client_for_python_works_with_this_server() {
    let served = serve(TASKS).await;
    let mut live = python();
    live.arg("live.py").current_dir(folder("python").join("tests"));
    live.env("QUELL_SERVER", format!("http://{}", served.server.address()));
    succeeds(live).await;
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn the_client_for_python_installs_as_its_page_says() {
    let (copy, site) = (copy_of("python"), tempfile::tempdir().unwrap());
    let mut install = quell_services::python_3().unwrap();
    install.args(["-m", "pip", "install", "--quiet", "--target"]).arg(site.path()).arg(copy.path());
    succeeds(install).await;
    let mut import = quell_services::python_3().unwrap();
    import.args(["-c", "import quell; quell.Quell, quell.AsyncQuell; print(quell.__file__)"]);
    import.env("PYTHONPATH", site.path()).current_dir(site.path());
    succeeds(import).await;
    assert!(site.path().join("quell/py.typed").exists());
}

#[tokio::test]
async fn the_client_for_typescript_passes_its_tests() {
    let mut tests = quell_services::npm().unwrap();
    tests.args(["test", "--silent"]).current_dir(folder("typescript"));
    succeeds(tests).await;
}

#[tokio::test]
async fn the_client_for_typescript_works_with_this_server() {
    let served = serve(TASKS).await;
    let mut live = quell_services::node().unwrap();
    live.arg("test/live.mjs").current_dir(folder("typescript"));
    live.env("QUELL_SERVER", format!("http://{}", served.server.address()));
    succeeds(live).await;
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn the_client_for_typescript_installs_as_its_page_says_and_its_types_fit() {
    let (copy, project) = (copy_of("typescript"), tempfile::tempdir().unwrap());
    std::fs::write(project.path().join("package.json"), r#"{"private":true,"type":"module"}"#)
        .unwrap();
    let mut install = quell_services::npm().unwrap();
    install.args(["install", "--no-audit", "--no-fund", "--silent"]).arg(copy.path());
    succeeds({
        install.current_dir(project.path());
        install
    })
    .await;
    std::fs::write(
        project.path().join("a.mjs"),
        "import { Quell } from 'quell-client'; new Quell({ url: 'http://127.0.0.1:1' });\n",
    )
    .unwrap();
    let mut import = quell_services::node().unwrap();
    import.arg("a.mjs").current_dir(project.path());
    succeeds(import).await;
    // The compiler is a development dependency of the client.
    let mut compiler = quell_services::npm().unwrap();
    compiler.args(["install", "--no-audit", "--no-fund", "--silent"]).current_dir(copy.path());
    succeeds(compiler).await;
    let mut check = quell_services::npm().unwrap();
    check.args(["run", "--silent", "check"]).current_dir(copy.path());
    succeeds(check).await;
}

/// Fedify's own suite, unchanged, and order beside a message that fails (R41).
#[tokio::test]
async fn r41_the_adapter_for_fedify_passes_its_suite_and_keeps_the_order() {
    let copy = copy_of("typescript");
    let example = copy.path().join("examples/fedify");
    let tasks = std::fs::read_to_string(example.join("quell.toml")).unwrap();
    let served = serve(&tasks).await;
    let mut install = quell_services::npm().unwrap();
    install.args(["install", "--no-audit", "--no-fund", "--silent"]).current_dir(&example);
    succeeds(install).await;
    let mut suite = quell_services::npm().unwrap();
    suite.args(["test", "--silent"]).current_dir(&example);
    suite.env("QUELL_SERVER", format!("http://{}", served.server.address()));
    succeeds(suite).await;
    served.server.stop().await.unwrap();
}
