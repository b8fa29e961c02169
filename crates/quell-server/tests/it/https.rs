//! Servers behind TLS.

use std::process::Output;

use quell_services::{Papers, Website};

use crate::binary::{quell, text};

fn list(website: &Website, authority: Option<&Papers>) -> Output {
    let mut command = quell(&["queue", "list", "--server", &website.url()]);
    match authority {
        Some(papers) => command.env("SSL_CERT_FILE", papers.path("ca.pem").unwrap()),
        None => command.env_remove("SSL_CERT_FILE"),
    };
    command.output().unwrap()
}

#[test]
fn a_server_behind_tls_is_asked_where_its_authority_is_trusted() {
    let (papers, others) = (Papers::new().unwrap(), Papers::new().unwrap());
    let shown = r#"{"queues":[{"name":"billing","paused":true}]}"#;
    let website = Website::start(&papers, "/v1/queues", shown).unwrap();
    let (succeeded, shown) = text(&list(&website, Some(&papers)));
    assert!(succeeded && shown.contains("billing"), "{shown}");
    for authority in [None, Some(&others)] {
        let (succeeded, shown) = text(&list(&website, authority));
        assert!(!succeeded && shown.contains("certificate is not trusted"), "{shown}");
    }
}
