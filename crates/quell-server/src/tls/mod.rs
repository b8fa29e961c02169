//! The server's certificate: read from two PEM files, and read again when they have changed.
//!
//! A connection takes the newest pair at its handshake, so a renewal needs no restart and ends no connection.
//! Invariant: a pair that cannot be used never replaces one that can.

mod validity;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::private_file::{self, Version};

/// How often the files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// The longest file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// From how long before its end on the log warns of a certificate.
const WARN_BEFORE: jiff::SignedDuration = jiff::SignedDuration::from_hours(7 * 24);

/// A field of the configuration and what is wrong with it.
pub(crate) type Fault = (&'static str, String);
/// Where the configuration names the certificate.
pub(crate) const CERT_FIELD: &str = "server.tls.cert_file";
/// Where the configuration names the key.
pub(crate) const KEY_FIELD: &str = "server.tls.key_file";

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairFiles {
    /// The certificate, with those of its authorities below the root.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// A certificate that fits its key.
#[derive(Clone, Debug)]
pub struct Pair {
    files: PairFiles,
    certified: Arc<CertifiedKey>,
    versions: [Version; 2],
    until: Option<Timestamp>,
}

impl Pair {
    /// Reads two files.
    ///
    /// # Errors
    /// The field, and what is wrong with the file that it names.
    pub(crate) fn read(files: PairFiles) -> Result<Self, Fault> {
        let (of_cert, chain) = read_chain(&files.cert).map_err(|why| (CERT_FIELD, why))?;
        let (of_key, key) = read_key(&files.key).map_err(|why| (KEY_FIELD, why))?;
        let until = chain.first().and_then(|cert| validity::not_after(cert));
        let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
        let (cert, key) = (files.cert.display(), files.key.display());
        let certified = certified.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                let remedy = "give the key of the first certificate in that file";
                (KEY_FIELD, format!("the key {key} does not fit the certificate {cert}: {remedy}"))
            }
            error => (CERT_FIELD, format!("{cert} and {key} cannot be used: {error}")),
        })?;
        let certified = Arc::new(certified);
        Ok(Pair { files, certified, versions: [of_cert, of_key], until })
    }

    /// Warns of a certificate that has expired, or will within days.
    pub(crate) fn warn_of_its_end(&self) {
        let Some(until) = self.until else { return };
        let (now, file) = (Timestamp::now(), self.files.cert.display());
        if until <= now {
            warn!(%file, %until, "the certificate has expired, clients refuse it: renew it");
        } else if until.duration_since(now) < WARN_BEFORE {
            warn!(%file, %until, "the certificate expires within a week: renew it");
        }
    }
}

/// Reads a certificate and those of its authorities.
fn read_chain(path: &Path) -> Result<(Version, Vec<CertificateDer<'static>>), String> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| format!("the file {shown} cannot be read: {error}");
    let file = File::open(path).map_err(unreadable)?;
    let version = file.metadata().and_then(|found| Version::of(&found)).map_err(unreadable)?;
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut text).map_err(unreadable)?;
    let chain = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok((version, chain)),
        Ok(_) => Err(format!(
            "the file {shown} has no certificate: give PEM with `-----BEGIN CERTIFICATE-----`, the \
             server's own first"
        )),
        Err(error) => Err(format!("the file {shown} is not PEM: {error}")),
    }
}

/// Reads a key, which no other user of the machine may read.
fn read_key(path: &Path) -> Result<(Version, PrivateKeyDer<'static>), String> {
    let (version, text) = private_file::read(path, MAX_FILE_BYTES).map_err(|e| e.to_string())?;
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes());
    let key = key.map_err(|_| {
        format!(
            "the file {} has no private key: give PEM with `-----BEGIN PRIVATE KEY-----`, without a \
             passphrase",
            path.display()
        )
    })?;
    Ok((version, key))
}

/// What two files are now; none where one is gone.
type Versions = [Option<Version>; 2];

/// The pair that new connections get.
#[derive(Debug)]
pub(crate) struct Certificate {
    now: RwLock<Pair>,
    /// The versions that cannot be used, and how often they were looked at.
    failed: Mutex<Option<(Versions, u32)>>,
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.pair().certified))
    }
}

impl Certificate {
    pub(crate) fn new(pair: Pair) -> Arc<Self> {
        pair.warn_of_its_end();
        Arc::new(Certificate { now: RwLock::new(pair), failed: Mutex::default() })
    }

    /// What connections are accepted with: TLS 1.2 or 1.3, and HTTP/1.1.
    ///
    /// # Errors
    /// Where the provider of cryptography lacks one of them.
    pub(crate) fn acceptor(self: &Arc<Self>) -> Result<tokio_rustls::TlsAcceptor, rustls::Error> {
        let provider = Arc::new(ring::default_provider());
        let versions = &[&rustls::version::TLS13, &rustls::version::TLS12];
        let config = ServerConfig::builder_with_provider(provider);
        let config = config.with_protocol_versions(versions)?.with_no_client_auth();
        let mut config = config.with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(tokio_rustls::TlsAcceptor::from(Arc::new(config)))
    }

    fn pair(&self) -> Pair {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes another pair, as a configuration names it.
    pub(crate) fn set(&self, pair: Pair) {
        if pair.versions != self.pair().versions {
            let until = pair.until.map(|until| until.to_string());
            info!(file = %pair.files.cert.display(), until, "certificate renewed");
            pair.warn_of_its_end();
        }
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = pair;
    }

    /// Looks at the files until `stop`, and takes a new pair over.
    pub(crate) async fn watch(self: Arc<Self>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
            let certificate = Arc::clone(&self);
            // A disk may be slow. A panic there leaves the pair as it was.
            let _looked = tokio::task::spawn_blocking(move || certificate.look()).await;
        }
    }

    fn look(&self) {
        let before = self.pair();
        let version = |path: &Path| std::fs::metadata(path).and_then(|found| Version::of(&found));
        let found = [&before.files.cert, &before.files.key].map(|path| version(path).ok());
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if found == before.versions.map(Some) {
            *failed = None;
            return;
        }
        match Pair::read(before.files) {
            Ok(pair) => {
                *failed = None;
                drop(failed);
                self.set(pair);
            }
            // Two files are not replaced in one step: the second look counts, and each state is logged once.
            Err((field, why)) => {
                let looks = match *failed {
                    Some((versions, looks)) if versions == found => looks.saturating_add(1),
                    Some(_) | None => 1,
                };
                *failed = Some((found, looks));
                if looks == 2 {
                    let kept = "the one from before still counts";
                    error!(field, why, kept, "the renewed certificate cannot be used");
                }
            }
        }
    }
}
