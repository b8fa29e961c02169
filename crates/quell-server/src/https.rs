//! The client for HTTP and HTTPS of commands and handlers.

use reqwest::{Client, ClientBuilder};
use rustls::crypto::{CryptoProvider, ring};

/// A client for URLs of this scheme that is yet to be set up. The process has a provider of cryptography then:
/// ring, unless something chose another before.
///
/// Plain HTTP and sockets need no authorities, so a client for it works on a system that has none.
pub(crate) fn client(scheme: &str) -> ClientBuilder {
    if CryptoProvider::get_default().is_none() {
        // An error means that another thread was quicker.
        let _chosen = ring::default_provider().install_default();
    }
    let client = Client::builder();
    if matches!(scheme, "http" | "unix") { client.tls_certs_only([]) } else { client }
}

/// What is behind an error, each cause after a colon, without the URL: that may hold what is not for logs.
pub(crate) fn causes(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}
