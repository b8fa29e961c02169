//! The page of `quell demo`.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use quell_services::Chromium;

use crate::page::Page;

/// A demo that ends with the test. It writes on, so its output stays open.
struct Demo {
    process: Child,
    _output: BufReader<ChildStdout>,
}

impl Demo {
    fn start(history: &std::path::Path) -> (Demo, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
        command.args(["demo", "--for", "300s", "--headless", "--history"]).arg(history);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let lines = (&mut output).lines().map_while(Result::ok);
        let line = lines.take(20).find(|line| line.starts_with("Watch it"));
        let demo = Demo { process, _output: output };
        let line = line.expect("the demo says where its page is");
        let address = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
        (demo, address.to_owned())
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _gone = self.process.wait();
    }
}

#[test]
fn the_page_of_the_demo_suits_everybody() {
    let folder = tempfile::tempdir().unwrap();
    let (_demo, address) = Demo::start(folder.path());
    let browser = Arc::new(Chromium::start().unwrap());
    let page = Page::open(&browser);
    page.goto(&address);
    page.wait_for_text("Windows that wait");
    page.suits_everybody("demo");
}
