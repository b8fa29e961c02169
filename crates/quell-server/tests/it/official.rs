//! Signatures of HTTP calls, as the official libraries of Standard Webhooks verify them, in Python and
//! Node.js: keys with and without prefix, and two signatures while a secret is rotated.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::handlers::{header, target};
use crate::served::serve;

const PYTHON: &str = "
import json, sys
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
asked = json.load(sys.stdin)
try:
    Webhook(asked['secret']).verify(asked['body'], asked['headers'])
    print('verified')
except WebhookVerificationError as error:
    print('refused', error)
";

const NODE: &str = "
const { Webhook } = require('standardwebhooks');
const asked = JSON.parse(require('node:fs').readFileSync(0, 'utf8'));
try {
  new Webhook(asked.secret).verify(asked.body, asked.headers);
  console.log('verified');
} catch (error) {
  console.log('refused', String(error));
}
";

/// What the library says of a request.
fn verdict(mut library: Command, secret: &str, request: &str) -> String {
    let (_, body) = request.split_once("\r\n\r\n").unwrap();
    let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
    let headers: serde_json::Map<_, _> =
        names.map(|name| (name.to_owned(), json!(header(request, name)))).into_iter().collect();
    let asked = json!({"secret": secret, "body": body, "headers": headers}).to_string();
    library.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = library.spawn().unwrap();
    child.stdin.take().unwrap().write_all(asked.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8(text).unwrap().trim().to_owned()
}

fn libraries() -> [(&'static str, Command); 2] {
    let mut python = quell_services::python_with_webhooks().unwrap();
    python.args(["-c", PYTHON]);
    let mut node = quell_services::node_with_webhooks().unwrap();
    node.args(["-e", NODE]);
    [("Python", python), ("Node.js", node)]
}

/// Both libraries verify a request with each of these secrets, and refuse it with another.
fn all_verify(request: &str, secrets: &[&str]) {
    for secret in secrets {
        for (name, library) in libraries() {
            assert_eq!(
                verdict(library, secret, request),
                "verified",
                "{name}, {secret}: {request}"
            );
        }
    }
    for (name, library) in libraries() {
        let refused = verdict(library, "b3RoZXIgc2VjcmV0", request);
        assert!(refused.starts_with("refused"), "{name}: {refused}");
    }
}

#[tokio::test]
async fn the_official_libraries_verify_what_is_signed_also_during_a_rotation() {
    let (url, mut requests, _target) = target("HTTP/1.1 204 No Content\r\n\r\n").await;
    let secret = tempfile::NamedTempFile::new().unwrap();
    let (old, new) = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "bmV3IHNlY3JldA==");
    crate::served::write_secret(secret.path(), old);
    let served = serve(&format!(
        "[tasks.hook]\nhttp = {{ url = \"{url}\", allow = [\"127.0.0.0/8\"], secret_file = \"{}\" }}\n",
        secret.path().display()
    ))
    .await;
    served.trigger("hook", r#"{"text":"ü \" 12345678901234567890123"}"#).await;
    let request = requests.recv().await.unwrap();
    all_verify(&request, &[old, old.strip_prefix("whsec_").unwrap()]);
    crate::served::write_secret(secret.path(), format!("{new}\n{old}\n"));
    let deadline = Instant::now() + Duration::from_secs(20);
    let both = loop {
        served.trigger("hook", r#"{"n":1}"#).await;
        let request = requests.recv().await.unwrap();
        if header(&request, "webhook-signature").contains(' ') {
            break request;
        }
        assert!(Instant::now() < deadline, "never signed with both: {request}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    all_verify(&both, &[old, new]);
    served.server.stop().await.unwrap();
}
