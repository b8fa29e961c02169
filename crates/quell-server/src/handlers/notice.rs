//! Sends the notice of an alert to a sink (R27), as a task runs: with the same signature, the same
//! check of addresses, the same bounds.

use quell::TaskError;
use reqwest::header::CONTENT_TYPE;
use tokio_util::sync::CancellationToken;

use super::{Exec, Handler, Http};

/// A notice.
#[derive(Clone, Debug)]
pub struct Message {
    /// The same each time that it is sent, so that a receiver can deduplicate.
    pub id: String,
    /// JSON.
    pub body: String,
    /// The variables of a command, besides the body on its standard input.
    pub variables: Vec<(&'static str, String)>,
}

impl Handler {
    /// Sends it once.
    ///
    /// # Errors
    /// The reason of the failure, for people.
    pub async fn notify(&self, message: &Message) -> Result<(), String> {
        let sent = match self {
            Handler::Exec(exec) => exec.notify(message).await,
            Handler::Http(http) => http.notify(message).await,
        };
        sent.map_err(|error| error.describe())
    }
}

impl Http {
    async fn notify(&self, message: &Message) -> Result<(), TaskError> {
        let body = message.body.as_bytes().to_vec();
        let request = self.signed(&message.id, body)?.header(CONTENT_TYPE, "application/json");
        self.exchange(request, &CancellationToken::new()).await.map(drop)
    }
}

impl Exec {
    async fn notify(&self, message: &Message) -> Result<(), TaskError> {
        let mut command = self.bare_command()?;
        command.envs(message.variables.iter().map(|(name, value)| (*name, value)));
        let (never, body) = (CancellationToken::new(), message.body.as_bytes().to_vec());
        self.run_command(command, body, &never, &never).await.map(drop)
    }
}
