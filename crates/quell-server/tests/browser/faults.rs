//! What a browser complains about: errors in the console, uncaught exceptions, files that are refused,
//! violations of the Content-Security-Policy.

use serde_json::Value;

/// The complaints about a page, and those that a test expects.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    seen: Vec<String>,
    /// With whether it has come.
    expected: Vec<(String, bool)>,
}

impl Faults {
    pub(crate) fn expect(&mut self, text: &str) {
        self.expected.push((text.to_owned(), false));
    }

    /// A fault with this text may come or not.
    pub(crate) fn tolerate(&mut self, text: &str) {
        self.expected.push((text.to_owned(), true));
    }

    pub(crate) fn add(&mut self, events: &[Value]) {
        for fault in events.iter().filter_map(fault) {
            let expected = self.expected.iter_mut().find(|(text, _)| fault.contains(text.as_str()));
            match expected {
                Some((_, came)) => *came = true,
                None => self.seen.push(fault),
            }
        }
    }

    pub(crate) fn check(&self) {
        assert!(self.seen.is_empty(), "the browser complains:\n{}", self.seen.join("\n"));
    }

    pub(crate) fn check_expected(&self) {
        let missing: Vec<_> = self.expected.iter().filter(|(_, came)| !came).collect();
        assert!(missing.is_empty(), "the browser does not complain about {missing:?}");
    }
}

/// The complaint of an event, if it is one.
fn fault(event: &Value) -> Option<String> {
    let params = &event["params"];
    match event["method"].as_str()? {
        "Runtime.exceptionThrown" => Some(format!("exception: {}", params["exceptionDetails"])),
        "Runtime.consoleAPICalled" => {
            let is_fault = matches!(params["type"].as_str()?, "error" | "warning" | "assert");
            is_fault.then(|| format!("console: {}", params["args"]))
        }
        "Log.entryAdded" => {
            let entry = &params["entry"];
            let is_fault = matches!(entry["level"].as_str()?, "error" | "warning");
            is_fault.then(|| format!("log: {} {}", entry["text"], entry["url"]))
        }
        "Audits.issueAdded" => Some(format!("issue: {}", params["issue"])),
        _ => None,
    }
}
