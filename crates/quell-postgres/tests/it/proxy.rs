//! A proxy on loopback between a store and its server: it closes a connection after a given number of
//! bytes of the server's replies, or goes silent: nothing passes, and nothing is closed.
//!
//! The connections that send and receive notifications are not counted, and go silent with the others
//! only.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How connections for hints introduce themselves.
const HINTS: &[u8] = b"quell hints";

/// Where in the server's replies the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cut {
    /// As soon as this number of bytes has passed: whatever the client sends next does not arrive.
    After(usize),
    /// When the server has sent a byte more, which does not arrive: it has done what it was asked.
    Before(usize),
    /// As soon as this number of bytes has passed nothing more passes, in either direction, until the
    /// proxy heals. The connection stays open, as that of a process that was stopped.
    Silent(usize),
}

/// Which connections are silent, and in which directions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    /// What the store sends does not arrive.
    up: bool,
    /// What the server sends does not arrive.
    down: bool,
    /// Connections made before this one.
    before: u64,
    /// How often all of it was over.
    heals: u64,
}

/// Nothing passes.
pub(crate) const BOTH: Silence = Silence { up: true, down: true, before: 0, heals: 0 };
/// What the store sends does not arrive.
pub(crate) const UP: Silence = Silence { up: true, down: false, before: 0, heals: 0 };
/// What the server sends does not arrive.
pub(crate) const DOWN: Silence = Silence { up: false, down: true, before: 0, heals: 0 };

/// What passes.
#[derive(Debug, Default)]
struct Gate {
    cut: Option<Cut>,
    /// The replies since it was set.
    replies: Vec<u8>,
    was_cut: bool,
}

impl Gate {
    /// How many of these bytes pass, and what then becomes of the connection.
    fn pass(&mut self, bytes: &[u8]) -> (usize, After) {
        let so_far = self.replies.len();
        self.replies.extend_from_slice(bytes);
        let (ends_at, after) = match self.cut {
            Some(Cut::After(at)) if self.replies.len() >= at => (at, After::Closed),
            Some(Cut::Before(at)) if self.replies.len() > at => (at, After::Closed),
            Some(Cut::Silent(at)) if self.replies.len() >= at => (at, After::Silent),
            _ => return (bytes.len(), After::Open),
        };
        self.cut = None;
        self.was_cut = true;
        (ends_at.saturating_sub(so_far), after)
    }
}

/// What becomes of a connection after some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Open,
    Closed,
    Silent,
}

/// A proxy; it ends with its value, and its connections with it.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    gate: Arc<Mutex<Gate>>,
    silence: watch::Sender<Silence>,
    made: Arc<AtomicU64>,
    /// The port of the server.
    leads_to: Arc<AtomicU16>,
    /// How often all connections were closed.
    closings: watch::Sender<u64>,
    _listens: JoinSet<()>,
}

impl Proxy {
    /// Before the server on this port of the loopback address.
    pub(crate) async fn start(server: u16) -> Proxy {
        Proxy::start_sparing(server, HINTS).await
    }

    /// As [`Proxy::start`]; connections on which a client says `spared` are not counted.
    pub(crate) async fn start_sparing(server: u16, spared: &'static [u8]) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let gate = Arc::<Mutex<Gate>>::default();
        let (mut listens, shared) = (JoinSet::new(), Arc::clone(&gate));
        let (silence, hush) = watch::channel(Silence::default());
        let made = Arc::<AtomicU64>::default();
        let leads_to = Arc::new(AtomicU16::new(server));
        let (closings, closing) = watch::channel(0);
        let (number, server) = (Arc::clone(&made), Arc::clone(&leads_to));
        listens.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let hush = Hush { own: number.fetch_add(1, Ordering::Relaxed), of: hush.clone() };
                let (gate, mut closing) = (Arc::clone(&shared), closing.clone());
                let server = server.load(Ordering::Relaxed);
                closing.mark_unchanged();
                connections.spawn(async move {
                    tokio::select! {
                        () = serve(client, server, gate, (hush, spared)) => {}
                        Ok(()) = closing.changed() => {}
                    }
                });
            }
        });
        Proxy { port, gate, silence, made, leads_to, closings, _listens: listens }
    }

    /// Leads new connections to the server on another port.
    pub(crate) fn lead_to(&self, server: u16) {
        self.leads_to.store(server, Ordering::Relaxed);
    }

    /// Closes all connections that there are.
    pub(crate) fn close_all(&self) {
        self.closings.send_modify(|closings| *closings += 1);
    }

    /// Lets all connections that there are go silent; new ones work.
    pub(crate) fn silence(&self, silence: Silence) {
        let before = self.made.load(Ordering::Relaxed);
        self.silence.send_modify(|now| *now = Silence { before, heals: now.heals, ..silence });
    }

    /// Lets all connections go silent, those to come as well.
    pub(crate) fn black_hole(&self) {
        self.silence.send_modify(|now| {
            *now = Silence { before: u64::MAX, heals: now.heals, ..BOTH };
        });
    }

    /// Lets everything go on where it stopped.
    pub(crate) fn heal(&self) {
        self.silence.send_modify(|now| {
            *now = Silence { heals: now.heals + 1, ..Silence::default() };
        });
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Counts the bytes of replies from now on, and closes the connection of the one it falls in.
    pub(crate) fn set(&self, cut: Option<Cut>) {
        let fresh = Gate { cut, ..Gate::default() };
        *self.gate.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
    }

    /// Whether a connection was cut off, or went silent, since that was asked for.
    pub(crate) fn was_cut(&self) -> bool {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner).was_cut
    }

    /// Lets everything through; returns the replies since it was set, and whether it closed one.
    pub(crate) fn unset(&self) -> (Vec<u8>, bool) {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let Gate { replies, was_cut, .. } = std::mem::take(&mut *gate);
        (replies, was_cut)
    }
}

/// What one connection asks before it passes anything on.
#[derive(Clone, Debug)]
struct Hush {
    own: u64,
    of: watch::Receiver<Silence>,
}

impl Hush {
    /// Waits until this direction is not silent.
    async fn over(&mut self, silent: impl Fn(&Silence) -> bool) {
        let own = self.own;
        let over = self.of.wait_for(|now| own >= now.before || !silent(now));
        // The proxy has ended otherwise.
        drop(over.await);
    }

    /// How often all silence was over so far.
    fn heals(&self) -> u64 {
        self.of.borrow().heals
    }

    /// Waits until that was once more.
    async fn healed(&mut self, heals: u64) {
        drop(self.of.wait_for(|now| now.heals > heals).await);
    }
}

/// Either end closes both.
async fn serve(
    client: TcpStream,
    server: u16,
    gate: Arc<Mutex<Gate>>,
    (hush, spared): (Hush, &'static [u8]),
) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    // A reply's last bytes are not to wait for the next ones.
    client.set_nodelay(true).unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    // Where it was stopped: after how many heals it goes on.
    let (hints, stopped) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut hush_up, mut hush_down) = (hush.clone(), hush);
    let up = async {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(length @ 1..) = from_client.read(&mut bytes).await {
            if bytes[..length].windows(spared.len()).any(|word| word == spared) {
                hints.store(true, Ordering::Relaxed);
            }
            hush_up.over(|now| now.up).await;
            if let heals @ 1.. = stopped.load(Ordering::Relaxed) {
                hush_up.healed(heals - 1).await;
            }
            if to_server.write_all(&bytes[..length]).await.is_err() {
                return;
            }
        }
        hush_up.over(|now| now.up).await;
        if let heals @ 1.. = stopped.load(Ordering::Relaxed) {
            hush_up.healed(heals - 1).await;
        }
    };
    let down = async {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
            let (passing, after) = match hints.load(Ordering::Relaxed) {
                true => (length, After::Open),
                false => gate.lock().unwrap_or_else(PoisonError::into_inner).pass(&bytes[..length]),
            };
            let heals = hush_down.heals();
            if after == After::Silent {
                stopped.store(heals + 1, Ordering::Relaxed);
            }
            hush_down.over(|now| now.down).await;
            if to_client.write_all(&bytes[..passing]).await.is_err() || after == After::Closed {
                return;
            }
            if after == After::Silent {
                hush_down.healed(heals).await;
                if to_client.write_all(&bytes[passing..length]).await.is_err() {
                    return;
                }
            }
        }
        hush_down.over(|now| now.down).await;
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
