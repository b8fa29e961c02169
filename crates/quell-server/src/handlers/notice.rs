//! Telling a sink of an alert (R27), by the means that run tasks: the same signature, the same guard
//! against addresses that are not public, the same bounds.

use quell::TaskError;
use reqwest::header::CONTENT_TYPE;
use tokio_util::sync::CancellationToken;

use super::{Exec, Handler, Http};

/// What a sink is told.
#[derive(Clone, Debug)]
pub struct Message {
    /// The same each time that it is told, so that a receiver can deduplicate.
    pub id: String,
    /// JSON.
    pub body: String,
    /// What a command gets as variables, besides the body on its standard input.
    pub variables: Vec<(&'static str, String)>,
}

impl Handler {
    /// Tells it once.
    ///
    /// # Errors
    /// Why it was not told, for people.
    pub async fn tell(&self, message: &Message) -> Result<(), String> {
        let told = match self {
            Handler::Exec(exec) => exec.tell(message).await,
            Handler::Http(http) => http.tell(message).await,
        };
        told.map_err(|error| error.describe())
    }
}

impl Http {
    async fn tell(&self, message: &Message) -> Result<(), TaskError> {
        let body = message.body.as_bytes().to_vec();
        let request = self.signed(&message.id, body)?.header(CONTENT_TYPE, "application/json");
        self.exchange(request, &CancellationToken::new()).await.map(drop)
    }
}

impl Exec {
    async fn tell(&self, message: &Message) -> Result<(), TaskError> {
        let mut command = self.bare_command()?;
        command.envs(message.variables.iter().map(|(name, value)| (*name, value)));
        let (never, body) = (CancellationToken::new(), message.body.as_bytes().to_vec());
        self.run_command(command, body, &never, &never).await.map(drop)
    }
}
