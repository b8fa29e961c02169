//! A proxy on loopback between a store and its server: it closes a connection after so many bytes
//! of the server's replies.
//!
//! Connections that show by a word that they are for hints are let through and not counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Where in the server's replies the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// As soon as so many bytes have passed: whatever the client says next does not arrive.
    After(usize),
    /// When the server has sent a byte more, which does not arrive: it has done what it was asked.
    Before(usize),
}

/// What passes.
#[derive(Debug, Default)]
struct Gate {
    cut: Option<Cut>,
    /// The replies since it was set.
    replies: Vec<u8>,
    /// Where each of them ended that came in one piece.
    ends: Vec<usize>,
    was_cut: bool,
}

impl Gate {
    /// How many of these bytes pass; none where the connection ends after them.
    fn pass(&mut self, bytes: &[u8]) -> (usize, bool) {
        let so_far = self.replies.len();
        self.replies.extend_from_slice(bytes);
        self.ends.push(self.replies.len());
        let ends_at = match self.cut {
            Some(Cut::After(at)) if self.replies.len() >= at => at,
            Some(Cut::Before(at)) if self.replies.len() > at => at,
            _ => return (bytes.len(), false),
        };
        self.cut = None;
        self.was_cut = true;
        (ends_at.saturating_sub(so_far), true)
    }
}

/// A proxy; it ends with its value, and its connections with it.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    gate: Arc<Mutex<Gate>>,
    _listens: JoinSet<()>,
}

impl Proxy {
    /// Before the server on this port of the loopback address. A connection on which the client says
    /// the word `hints` is let through.
    pub async fn start(server: u16, hints: &'static [u8]) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let port = listener.local_addr().expect("is bound").port();
        let gate = Arc::<Mutex<Gate>>::default();
        let (mut listens, shared) = (JoinSet::new(), Arc::clone(&gate));
        listens.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(serve(client, server, hints, Arc::clone(&shared)));
            }
        });
        Proxy { port, gate, _listens: listens }
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Counts the bytes of replies from now on, and closes the connection of the one it falls in.
    pub fn set(&self, cut: Option<Cut>) {
        let fresh = Gate { cut, ..Gate::default() };
        *self.gate.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
    }

    /// Lets everything through; returns the replies since it was set, and whether it closed one.
    pub fn unset(&self) -> (Vec<u8>, bool) {
        let Gate { replies, was_cut, .. } = self.take();
        (replies, was_cut)
    }

    /// As [`unset`](Proxy::unset), and returns where the replies ended instead.
    pub fn unset_ends(&self) -> Vec<usize> {
        self.take().ends
    }

    fn take(&self) -> Gate {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *gate)
    }
}

/// Either end closes both.
async fn serve(client: TcpStream, server: u16, word: &'static [u8], gate: Arc<Mutex<Gate>>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    // A reply's last bytes are not to wait for the next ones.
    if client.set_nodelay(true).is_err() {
        return;
    }
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let hints = AtomicBool::new(false);
    let up = async {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(length @ 1..) = from_client.read(&mut bytes).await {
            let said = bytes.get(..length).unwrap_or_default();
            if said.windows(word.len()).any(|part| part == word) {
                hints.store(true, Ordering::Relaxed);
            }
            if to_server.write_all(said).await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
            let reply = bytes.get(..length).unwrap_or_default();
            let (passing, ends) = match hints.load(Ordering::Relaxed) {
                true => (length, false),
                false => gate.lock().unwrap_or_else(PoisonError::into_inner).pass(reply),
            };
            let passing = reply.get(..passing).unwrap_or(reply);
            if to_client.write_all(passing).await.is_err() || ends {
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}
