//! The way to the masters of a Cluster: no command is sent again that may have been done.
//!
//! Each node has a [`Wire`] of its own, so that one which is silent or away delays no call to the
//! others, and each failure says whether the command may have been done. What a server says that it
//! has not done is sent again, and so is what may be done twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{
    Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult,
    ServerErrorKind, Value,
};
use tokio::time::{Instant, sleep, timeout_at};

use crate::slots::{SLOTS, Slots, address, slot_of};
use crate::source::Source;
use crate::wire::{Failed, Sent, Wire, silent};

/// The first pause before a command is sent again; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_millis(300);
/// Whose the slots are is read again after this time at the earliest.
const LEAST_AGE: Duration = Duration::from_millis(50);
/// How long one node may take to say whose the slots are, before another is asked.
const PATIENCE: Duration = Duration::from_secs(1);

/// Connections to all nodes, which many calls share.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Inner>);

struct Inner {
    /// How to greet a node.
    greeting: ConnectionInfo,
    /// The nodes that the URL names.
    named: Vec<String>,
    timeout: Duration,
    nodes: Mutex<BTreeMap<String, Wire>>,
    slots: Mutex<Arc<Slots>>,
    /// Held by the call that reads the slots, with the time of the last reading.
    reading: tokio::sync::Mutex<Option<Instant>>,
}

/// Whether a command may be done twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twice {
    /// It reads, or the second time changes nothing.
    Harmless,
    Never,
}

/// What to do after an error.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// To send it once more, to the node that has the keys by then.
    Again,
    /// To send it to the node that has taken the slot.
    Moved(String, u16),
    /// To send it to the node to which the slot moves.
    Ask(String),
    /// To return the error.
    Report,
}

impl Cluster {
    /// Finds the masters by some of the nodes.
    pub(crate) async fn connect(nodes: &[ConnectionInfo], timeout: Duration) -> RedisResult<Self> {
        let none = || RedisError::from((ErrorKind::InvalidClientConfig, "it names no server"));
        let greeting = nodes.first().cloned().ok_or_else(none)?;
        let named = nodes.iter().filter_map(|node| address(node.addr())).collect();
        let cluster = Cluster(Arc::new(Inner {
            greeting,
            named,
            timeout,
            nodes: Mutex::default(),
            slots: Mutex::default(),
            reading: tokio::sync::Mutex::new(None),
        }));
        cluster.read_slots(Instant::now() + timeout).await?;
        Ok(cluster)
    }

    /// Sends a command to the master of a key.
    pub(crate) async fn send(
        &self,
        key: &str,
        command: &Cmd,
        twice: Twice,
    ) -> Result<Value, Failed> {
        let mut answers = self.until_told(key, Sent::One(command), twice).await?;
        Ok(answers.pop().unwrap_or(Value::Nil))
    }

    /// Sends commands on keys of one slot, by one connection.
    pub(crate) async fn send_all(
        &self,
        key: &str,
        commands: &Pipeline,
        twice: Twice,
    ) -> Result<Vec<Value>, Failed> {
        self.until_told(key, Sent::All(commands), twice).await
    }

    /// Sends a command to each node; the answers of those that answer, by their address.
    pub(crate) async fn send_everywhere(&self, command: &Cmd) -> Result<Value, Failed> {
        let deadline = Instant::now() + self.0.timeout;
        let nodes: BTreeSet<String> = self.slots().nodes().cloned().collect();
        let asked = nodes.into_iter().map(async |node| {
            let wire = self.wire(&node);
            (node, wire.send(Sent::One(command), deadline).await)
        });
        let (mut answers, mut failed) = (Vec::new(), None);
        for (node, answer) in join_all(asked).await {
            match answer {
                Ok(mut all) => {
                    let answer = all.pop().unwrap_or(Value::Nil);
                    answers.push((Value::BulkString(node.into_bytes()), answer));
                }
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(failed) if answers.is_empty() => Err(failed),
            Some(_) | None => Ok(Value::Map(answers)),
        }
    }

    /// Whether the last connection to the master of a key could be made.
    pub(crate) fn is_reachable(&self, key: &str) -> bool {
        let owner = self.slots().owner(slot_of(key.as_bytes()));
        owner.is_none_or(|node| !self.wire(&node).has_failed())
    }

    async fn until_told(
        &self,
        key: &str,
        sent: Sent<'_>,
        twice: Twice,
    ) -> Result<Vec<Value>, Failed> {
        let deadline = Instant::now() + self.0.timeout;
        let slot = slot_of(key.as_bytes());
        let (mut pause, mut asked) = (FIRST_PAUSE, None::<String>);
        loop {
            let was_asked = asked.is_some();
            let (wire, answer) = match (asked.take(), self.slots().owner(slot)) {
                (Some(node), _) => {
                    let wire = self.wire(&node);
                    let answer = ask(&wire, sent, deadline).await;
                    (Some(wire), answer)
                }
                (None, Some(node)) => {
                    let wire = self.wire(&node);
                    let answer = wire.send(sent, deadline).await;
                    (Some(wire), answer)
                }
                (None, None) => (None, Err(Failed::not_done(nobody()))),
            };
            let Err(failed) = answer else { return answer };
            let is_away = wire.is_some_and(|wire| wire.is_away());
            let next = if is_away { Next::Report } else { next(&failed, twice) };
            if next == Next::Report || Instant::now() + pause > deadline {
                if matches!(failed.error.kind(), ErrorKind::Io | ErrorKind::Parse) {
                    // The next call finds a new master sooner.
                    self.refresh(Instant::now() + PATIENCE.min(self.0.timeout)).await;
                }
                return Err(failed);
            }
            match next {
                Next::Ask(node) => {
                    asked = Some(node);
                    // Two nodes may each say this of the other.
                    if !was_asked {
                        continue;
                    }
                }
                Next::Moved(node, slot) => self.note(slot, &node),
                Next::Again | Next::Report => self.refresh(deadline).await,
            }
            sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    fn slots(&self) -> Arc<Slots> {
        Arc::clone(&self.0.slots.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes note of one slot's new master.
    fn note(&self, slot: u16, node: &str) {
        let mut slots = self.0.slots.lock().unwrap_or_else(PoisonError::into_inner);
        *slots = Arc::new(slots.with(slot, node));
    }

    fn wire(&self, node: &str) -> Wire {
        let mut nodes = self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wire) = nodes.get(node) {
            return wire.clone();
        }
        let (host, port) = node.rsplit_once(':').unwrap_or((node, ""));
        let (host, port) = (host.to_owned(), port.parse().unwrap_or(0));
        let address = match self.0.greeting.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        let source = Source::Address(Box::new(self.0.greeting.clone().set_addr(address)));
        let wire = Wire::new(source, self.0.timeout);
        nodes.insert(node.to_owned(), wire.clone());
        wire
    }

    /// Reads the slots again, unless that was done a moment ago.
    async fn refresh(&self, deadline: Instant) {
        // Where no node answers, what is known stays.
        let _failed = self.read_slots(deadline).await;
    }

    async fn read_slots(&self, deadline: Instant) -> RedisResult<()> {
        let reading = timeout_at(deadline, self.0.reading.lock()).await;
        let mut reading = reading.map_err(|_| silent())?;
        if reading.is_some_and(|last| last.elapsed() < LEAST_AGE) {
            return Ok(());
        }
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let mut failed = None;
        for node in self.by_health() {
            if Instant::now() >= deadline {
                return Err(failed.unwrap_or_else(silent));
            }
            let until = deadline.min(Instant::now() + PATIENCE);
            let answer = self.wire(&node).send(Sent::One(&command), until).await;
            let read = answer.map_err(|failed| failed.error).and_then(|answers| {
                Slots::read(&node, answers.into_iter().next().unwrap_or(Value::Nil))
            });
            match read {
                // A node that has just started, or is cut off, knows of no masters.
                Ok(slots) if slots.is_empty() => failed = failed.or(Some(nobody())),
                Ok(slots) => {
                    self.learn(slots);
                    *reading = Some(Instant::now());
                    return Ok(());
                }
                Err(error) => failed = Some(error),
            }
        }
        *reading = Some(Instant::now());
        Err(failed.unwrap_or_else(nobody))
    }

    /// Takes note of all masters; connections to nodes that have left the Cluster end.
    fn learn(&self, slots: Slots) {
        let is_known =
            |node: &String| slots.nodes().any(|known| known == node) || self.0.named.contains(node);
        let mut nodes = self.0.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|node, _| is_known(node));
        drop(nodes);
        *self.0.slots.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(slots);
    }

    /// All nodes in the order in which to ask them: those that were away last come last.
    fn by_health(&self) -> Vec<String> {
        let known = self.slots();
        let mut nodes: Vec<String> = known.nodes().cloned().collect();
        nodes.extend(self.0.named.iter().cloned());
        let mut seen = BTreeSet::new();
        nodes.retain(|node| seen.insert(node.clone()));
        fastrand::shuffle(&mut nodes);
        nodes.sort_by_cached_key(|node| self.wire(node).has_failed());
        nodes
    }
}

/// Sends commands to a node that has taken over some keys of a slot and not yet all.
async fn ask(wire: &Wire, sent: Sent<'_>, deadline: Instant) -> Result<Vec<Value>, Failed> {
    let mut asked = redis::pipe();
    asked.cmd("ASKING");
    match sent {
        Sent::One(command) => drop(asked.add_command(command.clone())),
        Sent::All(commands) | Sent::Asking(commands) => commands.cmd_iter().for_each(|command| {
            asked.add_command(command.clone());
        }),
    }
    let mut answers = wire.send(Sent::Asking(&asked), deadline).await?;
    answers.drain(..1.min(answers.len()));
    Ok(answers)
}

fn nobody() -> RedisError {
    let down = ErrorKind::Server(ServerErrorKind::ClusterDown);
    RedisError::from((down, "no node knows the master of the slot"))
}

/// Whether the server says by this that it has done nothing of the command, and another or a later
/// one may do it.
fn is_not_done(kind: ServerErrorKind) -> bool {
    matches!(
        kind,
        ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly
    )
}

fn next(failed: &Failed, twice: Twice) -> Next {
    let error = &failed.error;
    let redirect = || error.redirect_node().map(|(node, slot)| (node.to_owned(), slot));
    match error.kind() {
        // An empty host means the node that says so; a look at the slots names it.
        ErrorKind::Server(ServerErrorKind::Ask) => match redirect() {
            Some((node, _)) if !node.starts_with(':') => Next::Ask(node),
            Some(_) | None => Next::Again,
        },
        ErrorKind::Server(ServerErrorKind::Moved) => match redirect() {
            Some((node, slot)) if !node.starts_with(':') && slot < SLOTS => Next::Moved(node, slot),
            Some(_) | None => Next::Again,
        },
        ErrorKind::Server(kind) if is_not_done(kind) => Next::Again,
        ErrorKind::Io | ErrorKind::Parse => match failed.may_be_done {
            // It waited for as long as it may.
            true if error.is_timeout() || twice == Twice::Never => Next::Report,
            true | false => Next::Again,
        },
        _ => Next::Report,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r39_a_redirection_without_a_host_is_looked_up() {
        let after = |kind, detail: &str| {
            let error = (ErrorKind::Server(kind), "said", detail.to_owned()).into();
            next(&Failed::not_done(error), Twice::Never)
        };
        let (ask, moved) = (ServerErrorKind::Ask, ServerErrorKind::Moved);
        assert_eq!(after(ask, "3999 h:6381"), Next::Ask("h:6381".to_owned()));
        assert_eq!(after(moved, "3999 h:6381"), Next::Moved("h:6381".to_owned(), 3_999));
        assert_eq!(after(ask, "3999 :6381"), Next::Again);
        assert_eq!(after(moved, "3999 :6381"), Next::Again);
    }
}
