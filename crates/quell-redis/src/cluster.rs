//! The way to the masters of a Cluster: no command is sent again that may have been done.
//!
//! The client is told to send nothing again: after a broken connection it would do so whether or not
//! the command was done. What a server says that it has not done is sent again here, and so is what
//! may be done twice.

use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::{
    Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult,
    ServerErrorKind, TlsCertificates, Value,
};
use tokio::time::{Instant, sleep, timeout_at};

/// The first pause before a command is sent again; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_millis(300);

/// Connections to all masters, which many calls share.
#[derive(Clone)]
pub(crate) struct Cluster {
    connection: ClusterConnection,
    /// How to greet a node that is not known yet.
    greeting: ConnectionInfo,
    timeout: Duration,
}

/// Whether a command may be done twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twice {
    /// It reads, or the second time changes nothing.
    Harmless,
    Never,
}

/// What goes to one node at a time.
#[derive(Clone, Copy)]
enum Sent<'s> {
    One(&'s Cmd),
    All(&'s Pipeline),
}

/// What to do after an error.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// To send it once more, to whoever has the keys by then.
    Again,
    /// To send it to the node to which the slot moves.
    Ask(String),
    /// To hand it on.
    Tell,
}

impl Cluster {
    /// Finds the masters by some of the nodes.
    pub(crate) async fn connect(
        nodes: &[ConnectionInfo],
        authorities: Option<TlsCertificates>,
        timeout: Duration,
    ) -> RedisResult<Self> {
        let mut client = ClusterClientBuilder::new(nodes.to_vec())
            .retries(0)
            .connection_timeout(timeout)
            .response_timeout(timeout);
        if let Some(authorities) = authorities {
            client = client.certs(authorities);
        }
        let client = client.build()?;
        let none = || RedisError::from((ErrorKind::InvalidClientConfig, "it names no server"));
        let greeting = nodes.first().cloned().ok_or_else(none)?;
        Ok(Cluster { connection: client.get_async_connection().await?, greeting, timeout })
    }

    /// Sends a command; without a key, to every node that it concerns.
    pub(crate) async fn send(&self, command: &Cmd, twice: Twice) -> RedisResult<Value> {
        let mut answers = self.until_told(Sent::One(command), twice).await?;
        answers.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// Sends commands on keys of one slot, by one connection.
    pub(crate) async fn send_all(
        &self,
        commands: &Pipeline,
        twice: Twice,
    ) -> RedisResult<Vec<Value>> {
        self.until_told(Sent::All(commands), twice).await
    }

    async fn until_told(&self, sent: Sent<'_>, twice: Twice) -> RedisResult<Vec<Value>> {
        let deadline = Instant::now() + self.timeout;
        let (mut pause, mut asked) = (FIRST_PAUSE, None::<String>);
        loop {
            let answer = async {
                match asked.take() {
                    None => self.send_once(sent).await,
                    Some(node) => self.ask(&node, sent).await,
                }
            };
            let late = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
            let answer = timeout_at(deadline, answer).await.unwrap_or_else(late);
            let Err(error) = answer else { return answer };
            let next = next(&error, twice);
            if next == Next::Tell || Instant::now() + pause > deadline {
                return Err(error);
            }
            if let Next::Ask(node) = next {
                asked = Some(node);
                continue;
            }
            sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    async fn send_once(&self, sent: Sent<'_>) -> RedisResult<Vec<Value>> {
        let mut connection = self.connection.clone();
        match sent {
            Sent::One(command) => Ok(vec![connection.req_packed_command(command).await?]),
            Sent::All(commands) => {
                connection.req_packed_commands(commands, 0, commands.len()).await
            }
        }
    }

    /// Sends commands to a node that has taken over some keys of a slot and not yet all. It may be
    /// so new that the client has not met it, so this takes a connection of its own.
    async fn ask(&self, node: &str, sent: Sent<'_>) -> RedisResult<Vec<Value>> {
        // Nothing is sent before there is a connection.
        let try_again = ErrorKind::Server(ServerErrorKind::TryAgain);
        let unknown = || RedisError::from((try_again, "no such node"));
        let (host, port) = node.rsplit_once(':').ok_or_else(unknown)?;
        let port = port.parse().map_err(|_| unknown())?;
        let address = match self.greeting.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        let client = Client::open(self.greeting.clone().set_addr(address))?;
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout));
        let connected = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = connected.map_err(|_| unknown())?;
        let mut asked = redis::pipe();
        asked.cmd("ASKING");
        match sent {
            Sent::One(command) => drop(asked.add_command(command.clone())),
            Sent::All(commands) => commands.cmd_iter().for_each(|command| {
                asked.add_command(command.clone());
            }),
        }
        let count = asked.len().saturating_sub(1);
        let answers = connection.req_packed_commands(&asked, 1, count).await?;
        // As the client does, of what the Cluster has to say.
        let not_done = answers.iter().find_map(|answer| match answer {
            Value::ServerError(error) if error.kind().is_some_and(is_not_done) => Some(error),
            _ => None,
        });
        match not_done {
            Some(error) => Err(error.clone().into()),
            None => Ok(answers),
        }
    }
}

/// Whether the server says by this that it has done nothing of the command.
///
/// The client may answer a command with an error of its own look for the slots; these never are.
fn is_not_done(kind: ServerErrorKind) -> bool {
    matches!(
        kind,
        ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly
    )
}

/// Whether a command may have been done although this error came.
pub(crate) fn is_lost(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Parse => true,
        // The client may answer what it has sent with an error of its own look for the slots, where no
        // node is left, or none that lets it in, or none that answers.
        ErrorKind::ClusterConnectionNotFound | ErrorKind::AuthenticationFailed => true,
        ErrorKind::Server(kind) => kind == ServerErrorKind::BusyLoading,
        _ => false,
    }
}

fn next(error: &RedisError, twice: Twice) -> Next {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::Ask) => match error.redirect_node() {
            Some((node, _)) => Next::Ask(node.to_owned()),
            None => Next::Again,
        },
        ErrorKind::Server(kind) if is_not_done(kind) => Next::Again,
        // It waited for as long as it may.
        _ if error.is_timeout() => Next::Tell,
        _ if is_lost(error) && twice == Twice::Harmless => Next::Again,
        _ => Next::Tell,
    }
}
