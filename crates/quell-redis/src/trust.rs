//! Whom to trust behind `rediss://`: who the system trusts, or the authorities of a file.

use std::path::Path;

use quell_core::{Error, Result};
use redis::{Client, ConnectionInfo, RedisError, TlsCertificates};
use rustls::crypto::{CryptoProvider, aws_lc_rs};

/// The authorities that a file names, in PEM.
///
/// # Errors
/// Where the file cannot be read.
pub(crate) fn authorities(file: Option<&Path>) -> Result<Option<TlsCertificates>> {
    let Some(file) = file else { return Ok(None) };
    let read = std::fs::read(file).map_err(|error| {
        let message = format!("ca_file {}: it cannot be read", file.display());
        Error::invalid("ca_file", message).with_source(error)
    })?;
    Ok(Some(TlsCertificates { client_tls: None, root_cert: Some(read) }))
}

/// Nodes that are only spoken to if these authorities vouch for them.
///
/// # Errors
/// Where a node is to be reached without TLS, and where the file holds no certificates.
pub(crate) fn trusting(
    nodes: &[ConnectionInfo],
    authorities: Option<&TlsCertificates>,
) -> Result<Vec<ConnectionInfo>> {
    if CryptoProvider::get_default().is_none() {
        // An error means that the process has a default provider already.
        let _chosen = aws_lc_rs::default_provider().install_default();
    }
    let Some(authorities) = authorities else { return Ok(nodes.to_vec()) };
    let trust = |node: &ConnectionInfo| {
        let client = Client::build_with_tls(node.clone(), authorities.clone());
        let client = client.map_err(|error| {
            let message = "ca_file: give `rediss://` and a file of certificates in PEM";
            Error::invalid("ca_file", message).with_source(error)
        })?;
        Ok(client.get_connection_info().clone())
    };
    nodes.iter().map(trust).collect()
}

/// Whether a connection came to nothing because one side does not trust the other.
pub(crate) fn is_distrust(error: &RedisError) -> bool {
    // The client of a Cluster keeps only the words.
    error.to_string().contains("certificate")
}
