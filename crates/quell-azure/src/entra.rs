//! Bearer tokens of Entra ID, from Azure's own crate.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use azure_core::credentials::TokenCredential;
use azure_identity::{
    DeveloperToolsCredential, ManagedIdentityCredential, WorkloadIdentityCredential,
};
use quell_core::{Error, ErrorKind, Result};
use tokio::sync::Mutex;

use crate::credentials::{Secret, TokenSource};

/// The scope that all storage services accept.
const STORAGE: &str = "https://storage.azure.com/.default";
/// The scope that Service Bus accepts.
const SERVICE_BUS: &str = "https://servicebus.azure.net/.default";
/// How long before its end a token is replaced.
const MARGIN: Duration = Duration::from_secs(300);

/// Which identity asks for tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Identity {
    /// The managed identity of the machine, the app service or the function.
    Managed,
    /// The workload identity of a pod, from `AZURE_CLIENT_ID`, `AZURE_TENANT_ID` and
    /// `AZURE_FEDERATED_TOKEN_FILE`.
    Workload,
    /// The developer who signed in by `az login` or `azd auth login`.
    Developer,
}

/// Tokens for one identity; each is cached until five minutes before its end.
pub struct Entra {
    credential: Arc<dyn TokenCredential>,
    scope: &'static str,
    cached: Mutex<Option<(Secret, SystemTime)>>,
}

impl Entra {
    /// Tokens of `identity` for tables and queues of Azure Storage.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the environment lacks what the identity needs.
    pub fn new(identity: Identity) -> Result<Self> {
        Entra::of_scope(identity, STORAGE)
    }

    /// Tokens of `identity` for Service Bus.
    ///
    /// # Errors
    /// As [`Entra::new`].
    pub fn of_service_bus(identity: Identity) -> Result<Self> {
        Entra::of_scope(identity, SERVICE_BUS)
    }

    fn of_scope(identity: Identity, scope: &'static str) -> Result<Self> {
        let credential = match identity {
            Identity::Managed => ManagedIdentityCredential::new(None).map(|it| it as Arc<_>),
            Identity::Workload => WorkloadIdentityCredential::new(None).map(|it| it as Arc<_>),
            Identity::Developer => DeveloperToolsCredential::new(None).map(|it| it as Arc<_>),
        };
        let invalid = |error: azure_core::Error| {
            let message = format!("cannot use the {identity:?} identity of Entra ID");
            Error::invalid("credential", message).with_source(error)
        };
        let credential = credential.map_err(invalid)?;
        Ok(Entra { credential, scope, cached: Mutex::new(None) })
    }
}

impl fmt::Debug for Entra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entra")
    }
}

#[async_trait]
impl TokenSource for Entra {
    async fn token(&self) -> Result<Secret> {
        // Held while it asks, so that concurrent requests share one answer.
        let mut cached = self.cached.lock().await;
        if let Some((token, ends)) = &*cached
            && SystemTime::now() + MARGIN < *ends
        {
            return Ok(token.clone());
        }
        let failed = |error: azure_core::Error| {
            Error::new(ErrorKind::Unavailable, "cannot get a token from Entra ID")
                .with_source(error)
        };
        let fresh = self.credential.get_token(&[self.scope], None).await.map_err(failed)?;
        let token = Secret::new(fresh.token.secret());
        *cached = Some((token.clone(), fresh.expires_on.into()));
        Ok(token)
    }
}
