//! axe-core on a page: whether everybody can use it.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::page::Page;

static SCRIPT: LazyLock<String> = LazyLock::new(|| quell_services::axe().unwrap());

/// Each rule of WCAG 2.2 A and AA, and what axe recommends beside.
const RUN: &str = "axe.run(document, {
    resultTypes: ['violations'],
    runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'],
    rules: { 'target-size': { enabled: true } },
}).then((found) => found.violations.flatMap((one) => one.nodes.map(
    (node) => one.id + ': ' + node.target.join(' ') + ': ' + node.failureSummary + '\\n' + node.html)))";

impl Page {
    /// The rules that the page breaks, each with the element. The script runs in a world of its own: the page
    /// does not see it, and its policy does not apply to it.
    pub(crate) fn violations(&self) -> Vec<String> {
        let tree = self.call("Page.getFrameTree", json!({}));
        let frame = json!({ "frameId": tree["frameTree"]["frame"]["id"], "worldName": "axe" });
        let world = self.call("Page.createIsolatedWorld", frame)["executionContextId"].take();
        let run = |expression: &str| {
            let params = json!({
                "expression": expression, "contextId": world, "returnByValue": true,
                "awaitPromise": true,
            });
            let answer = self.call("Runtime.evaluate", params);
            assert!(answer["exceptionDetails"].is_null(), "axe: {}", answer["exceptionDetails"]);
            answer["result"]["value"].clone()
        };
        run(&format!("{}\n;1", *SCRIPT));
        let Value::Array(found) = run(RUN) else { panic!("axe has no answer") };
        found.iter().map(|one| one.as_str().unwrap_or_default().to_owned()).collect()
    }
}
