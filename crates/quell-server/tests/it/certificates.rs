//! Certificates for tests, of authorities that no machine knows.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};

use crate::served::write_secret;

/// An authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, as PEM.
    pub(crate) pem: String,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority of tests");
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for a name or an address, and its key, as PEM.
    pub(crate) fn certify(&self, name: &str) -> (String, String) {
        self.sign(CertificateParams::new(vec![name.to_owned()]).unwrap())
    }

    /// The same of one that has expired.
    pub(crate) fn certify_in_the_past(&self, name: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        (cert.pem(), key.serialize_pem())
    }

    /// A client that trusts this authority and no other, and opens a connection for each request.
    pub(crate) fn client(&self) -> reqwest::Client {
        client_of(&[self])
    }
}

/// A client that trusts these authorities.
pub(crate) fn client_of(authorities: &[&Authority]) -> reqwest::Client {
    let of = |one: &&Authority| reqwest::Certificate::from_pem(one.pem.as_bytes()).unwrap();
    let builder = reqwest::Client::builder().tls_certs_only(authorities.iter().map(of));
    builder.pool_max_idle_per_host(0).no_proxy().build().unwrap()
}

/// Puts a pair into a folder, each file in one step.
pub(crate) fn put(folder: &Path, (cert, key): &(String, String)) {
    for (name, text) in [("cert.pem", cert), ("key.pem", key)] {
        let next = folder.join(format!("{name}.next"));
        write_secret(&next, text);
        std::fs::rename(next, folder.join(name)).unwrap();
    }
}
