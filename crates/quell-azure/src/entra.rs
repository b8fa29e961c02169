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
            let message = "cannot get a token from Entra ID: check the identity of `credential`";
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        let fresh = self.credential.get_token(&[self.scope], None).await.map_err(failed)?;
        let token = Secret::new(fresh.token.secret());
        *cached = Some((token.clone(), fresh.expires_on.into()));
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as StdMutex;

    use azure_core::credentials::{AccessToken, TokenRequestOptions};
    use azure_core::error::ErrorKind as AzureErrorKind;

    use super::*;

    /// Gives each of these tokens once, in this order: a text, or none for an error, and its lifetime.
    #[derive(Debug)]
    struct Stub {
        tokens: StdMutex<Vec<(Option<&'static str>, Duration)>>,
        scopes: StdMutex<Vec<String>>,
    }

    #[async_trait]
    impl TokenCredential for Stub {
        async fn get_token(
            &self,
            scopes: &[&str],
            _: Option<TokenRequestOptions<'_>>,
        ) -> azure_core::Result<AccessToken> {
            self.scopes.lock().unwrap().extend(scopes.iter().map(|scope| (*scope).to_owned()));
            // Others ask meanwhile.
            tokio::task::yield_now().await;
            let (text, lifetime) = self.tokens.lock().unwrap().remove(0);
            let away =
                || azure_core::Error::with_message(AzureErrorKind::Credential, "no identity");
            let text = text.ok_or_else(away)?;
            Ok(AccessToken::new(text, (SystemTime::now() + lifetime).into()))
        }
    }

    fn entra(
        scope: &'static str,
        tokens: impl Into<Vec<(Option<&'static str>, Duration)>>,
    ) -> (Entra, Arc<Stub>) {
        let tokens = StdMutex::new(tokens.into());
        let stub = Arc::new(Stub { tokens, scopes: StdMutex::default() });
        let credential = Arc::clone(&stub) as Arc<dyn TokenCredential>;
        (Entra { credential, scope, cached: Mutex::new(None) }, stub)
    }

    #[tokio::test]
    async fn r39_a_token_is_cached_until_five_minutes_before_its_end() {
        let minutes = |count: u64| Duration::from_secs(count * 60);
        let tokens =
            [(Some("short"), minutes(4)), (Some("long"), minutes(6)), (Some("spare"), minutes(6))];
        let (entra, stub) = entra(STORAGE, tokens);
        let mut texts = Vec::new();
        for _ in 0..3 {
            texts.push(entra.token().await.unwrap().expose().to_owned());
        }
        assert_eq!(texts, ["short", "long", "long"]);
        let (one, other) = tokio::join!(entra.token(), entra.token());
        assert_eq!(one.unwrap(), other.unwrap());
        assert_eq!(*stub.scopes.lock().unwrap(), [STORAGE, STORAGE]);
        assert!(!format!("{entra:?}").contains("long"));
    }

    #[tokio::test]
    async fn concurrent_requests_share_a_token_of_their_service() {
        let (entra, stub) = entra(SERVICE_BUS, [(Some("one"), Duration::from_secs(3_600))]);
        let (one, other) = tokio::join!(entra.token(), entra.token());
        assert_eq!((one.unwrap().expose(), other.unwrap().expose()), ("one", "one"));
        assert_eq!(*stub.scopes.lock().unwrap(), [SERVICE_BUS]);
    }

    #[tokio::test]
    async fn r39_an_identity_that_gives_no_token_is_named_and_asked_again() {
        let hour = Duration::from_secs(3_600);
        let (entra, _) = entra(STORAGE, [(None, hour), (Some("later"), hour)]);
        let error = entra.token().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("check the identity of `credential`"), "{error}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("no identity"), "{source}");
        assert_eq!(entra.token().await.unwrap().expose(), "later");
    }
}
