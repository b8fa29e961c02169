//! `rediss://`: a server with a certificate, of one node and of a Cluster, and who is not trusted.

use std::net::TcpListener;
use std::path::Path;

use quell_conformance::Rig;
use quell_conformance::rig::{lease, plain, until};
use quell_core::{Batch, Error, ErrorKind, Outcome, Settlement, Store};
use quell_redis::RedisOptions;
use quell_services::{Papers, Redis};

use crate::place::server;
use crate::wake::received;

/// The path of a file of these certificates.
fn path(papers: &Papers, name: &str) -> String {
    papers.path(name).unwrap()
}

/// A server that shows them, beside its usual port for the test itself.
fn serve(papers: &Papers, settings: &[&str]) -> (Redis, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let own = [
        format!("tls-port {port}"),
        format!("tls-cert-file {}", path(papers, "cert.pem")),
        format!("tls-key-file {}", path(papers, "key.pem")),
        format!("tls-ca-cert-file {}", path(papers, "ca.pem")),
        "tls-auth-clients no".to_owned(),
    ];
    let own: Vec<&str> = own.iter().map(String::as_str).chain(settings.iter().copied()).collect();
    (server(&own), port)
}

/// One process makes a trigger; another is notified of it and runs it.
async fn works(url: &str) {
    let open = async || RedisOptions::from_url(url).unwrap().open().await.unwrap();
    let (one, other) = (open().await, open().await);
    let mut wakeups = other.wakeups();
    one.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap().remove(0).unwrap();
    received(&mut wakeups, false).await;
    let job = other.claim(None, &Rig::claim_of(1)).await.unwrap().jobs.remove(0);
    let end = Settlement { lease: lease(&job), outcome: Outcome::succeeded() };
    other.settle(None, vec![end]).await.unwrap();
}

async fn refused(url: &str) -> Error {
    RedisOptions::from_url(url).unwrap().open().await.unwrap_err()
}

async fn distrusts(url: &str, others: &Path) {
    let others = others.display();
    for url in [url.to_owned(), format!("{url}?ca_file={others}")] {
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("check the server's certificate"), "{url}: {error:?}");
    }
}

#[tokio::test]
async fn r40_a_server_with_a_certificate_is_trusted_by_who_trusts_its_authority() {
    let (papers, others) = (Papers::new().unwrap(), Papers::new().unwrap());
    let (server, port) = serve(&papers, &[]);
    let url = format!("rediss://localhost:{port}/");
    works(&format!("{url}?ca_file={}", path(&papers, "ca.pem"))).await;
    distrusts(&url, path(&others, "ca.pem").as_ref()).await;
    let plain_url = format!("{}?ca_file={}", server.url(), path(&papers, "ca.pem"));
    for url in [plain_url, format!("{url}?ca_file=/nowhere.pem")] {
        let error = refused(&url).await;
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("ca_file")), "{error}");
    }
}

#[tokio::test]
async fn r40_a_cluster_with_certificates_is_trusted_by_who_trusts_their_authority() {
    let (papers, others) = (Papers::new().unwrap(), Papers::new().unwrap());
    let (server, port) = serve(&papers, &["cluster-enabled yes", "tls-cluster yes"]);
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).unwrap();
    until("the Cluster is up", async || {
        server.command(&["CLUSTER", "INFO"]).unwrap().contains("cluster_state:ok")
    })
    .await;
    let url = format!("rediss-cluster://127.0.0.1:{port}");
    works(&format!("{url}?ca_file={}", path(&papers, "ca.pem"))).await;
    distrusts(&url, path(&others, "ca.pem").as_ref()).await;
}
