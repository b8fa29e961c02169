//! A proxy on loopback between a store and its server: it closes a connection after so many bytes
//! of the server's replies.
//!
//! The connections that tell and hear hints are let through and not counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How connections for hints introduce themselves.
const HINTS: &[u8] = b"quell hints";

/// Where in the server's replies the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cut {
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
    was_cut: bool,
}

impl Gate {
    /// How many of these bytes pass; none where the connection ends after them.
    fn pass(&mut self, bytes: &[u8]) -> (usize, bool) {
        let so_far = self.replies.len();
        self.replies.extend_from_slice(bytes);
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
pub(crate) struct Proxy {
    port: u16,
    gate: Arc<Mutex<Gate>>,
    _listens: JoinSet<()>,
}

impl Proxy {
    /// Before the server on this port of the loopback address.
    pub(crate) async fn start(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let gate = Arc::<Mutex<Gate>>::default();
        let (mut listens, shared) = (JoinSet::new(), Arc::clone(&gate));
        listens.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(serve(client, server, Arc::clone(&shared)));
            }
        });
        Proxy { port, gate, _listens: listens }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Counts the bytes of replies from now on, and closes the connection of the one it falls in.
    pub(crate) fn set(&self, cut: Option<Cut>) {
        let fresh = Gate { cut, ..Gate::default() };
        *self.gate.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
    }

    /// Lets everything through; returns the replies since it was set, and whether it closed one.
    pub(crate) fn unset(&self) -> (Vec<u8>, bool) {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let Gate { replies, was_cut, .. } = std::mem::take(&mut *gate);
        (replies, was_cut)
    }
}

/// Either end closes both.
async fn serve(client: TcpStream, server: u16, gate: Arc<Mutex<Gate>>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    // A reply's last bytes are not to wait for the next ones.
    client.set_nodelay(true).unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let hints = AtomicBool::new(false);
    let up = async {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(length @ 1..) = from_client.read(&mut bytes).await {
            if bytes[..length].windows(HINTS.len()).any(|word| word == HINTS) {
                hints.store(true, Ordering::Relaxed);
            }
            if to_server.write_all(&bytes[..length]).await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
            let (passing, ends) = match hints.load(Ordering::Relaxed) {
                true => (length, false),
                false => gate.lock().unwrap_or_else(PoisonError::into_inner).pass(&bytes[..length]),
            };
            if to_client.write_all(&bytes[..passing]).await.is_err() || ends {
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

/// Where messages of the server end, and the middle of those with many bytes.
pub(crate) fn cuts_of(replies: &[u8]) -> Vec<Cut> {
    let mut cuts = vec![Cut::Before(0)];
    let mut at = 0;
    while let Some([kind, a, b, c, d]) =
        replies.get(at..at + 5).map(|h| [h[0], h[1], h[2], h[3], h[4]])
    {
        let end = at + 1 + u32::from_be_bytes([a, b, c, d]) as usize;
        match kind {
            // Those with many bytes: rows, what they are made of, errors.
            b'D' | b'T' | b'E' => cuts.push(Cut::Before((at + end) / 2)),
            // The client may speak.
            b'Z' => cuts.push(Cut::After(end)),
            _ => {}
        }
        cuts.push(Cut::Before(end));
        at = end;
    }
    assert_eq!(at, replies.len(), "the replies are whole messages");
    cuts
}
