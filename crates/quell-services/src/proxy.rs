//! A proxy on loopback before any server: it delays, holds up, cuts off at a byte, and resets.
//!
//! It knows no protocol: where a reply may be cut is for the test to say, from the bytes of
//! [`Proxy::unset`]. Two threads serve each connection, and end with the proxy.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;

/// Where in the server's replies a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// As soon as this number of bytes has passed: what the client sends next does not arrive.
    After(usize),
    /// When the server has sent a byte more, which does not arrive: it has done what it was asked.
    Before(usize),
}

/// Which way of a connection falls silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What clients say does not arrive.
    Up,
    /// What the server replies does not arrive.
    Down,
    /// Neither arrives.
    Both,
}

/// A proxy; it ends with its value, and its connections with it.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    gate: Arc<Gate>,
    accepts: Option<JoinHandle<()>>,
}

/// What passes, and a notification when that changes.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    /// Clients who have said this are let through, and not counted.
    spared: Vec<u8>,
    /// The port of the server that new connections lead to.
    server: AtomicU16,
}

#[derive(Debug, Default)]
struct State {
    cut: Option<Cut>,
    /// The replies since it was set.
    replies: Vec<u8>,
    was_cut: bool,
    delay: Duration,
    is_held: bool,
    has_ended: bool,
    connections: Vec<Arc<Connection>>,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    is_spared: AtomicBool,
    is_silent_up: AtomicBool,
    is_silent_down: AtomicBool,
    /// Whether the server has given it up, and its client does not know.
    is_abandoned: AtomicBool,
}

impl Connection {
    fn is_silent(&self) -> bool {
        [&self.is_silent_up, &self.is_silent_down].iter().any(|way| way.load(Ordering::Relaxed))
    }

    fn close(&self) {
        // A side that is gone needs no closing.
        let _gone = self.client.shutdown(Shutdown::Both);
        let _gone = self.server.shutdown(Shutdown::Both);
    }
}

impl State {
    /// How many of these bytes pass, and whether the connection ends after them.
    fn pass(&mut self, bytes: &[u8]) -> (usize, bool) {
        let so_far = self.replies.len();
        self.replies.extend_from_slice(bytes);
        let ends_at = match self.cut {
            Some(Cut::After(at)) if self.replies.len() >= at => at,
            Some(Cut::Before(at)) if self.replies.len() > at => at,
            Some(_) | None => return (bytes.len(), false),
        };
        self.cut = None;
        self.was_cut = true;
        (ends_at.saturating_sub(so_far).min(bytes.len()), true)
    }
}

impl Proxy {
    /// Before the server on this port of the loopback address.
    ///
    /// # Errors
    /// Where no port is free.
    pub fn start(server: u16) -> anyhow::Result<Self> {
        Proxy::sparing(server, b"")
    }

    /// Likewise, but connections whose client sends this are let through and not counted, such as
    /// those that only receive notifications.
    ///
    /// # Errors
    /// Where no port is free.
    pub fn sparing(server: u16, words: &[u8]) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
        let port = listener.local_addr()?.port();
        let server = AtomicU16::new(server);
        let gate = Arc::new(Gate { spared: words.to_owned(), server, ..Gate::default() });
        let shared = Arc::clone(&gate);
        let accepts = std::thread::Builder::new().name("proxy".to_owned());
        let accepts = accepts.spawn(move || accept(&listener, &shared))?;
        Ok(Proxy { port, gate, accepts: Some(accepts) })
    }

    /// Its own port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Counts the bytes of replies from now on, and closes the connection that the cut falls in.
    pub fn set(&self, cut: Option<Cut>) {
        let mut state = self.gate.lock();
        (state.cut, state.replies, state.was_cut) = (cut, Vec::new(), false);
    }

    /// Lets everything through; returns the replies since it was set, and whether it closed one.
    #[must_use]
    pub fn unset(&self) -> (Vec<u8>, bool) {
        let mut state = self.gate.lock();
        state.cut = None;
        (std::mem::take(&mut state.replies), std::mem::take(&mut state.was_cut))
    }

    /// Holds each piece of a reply back for so long.
    pub fn delay(&self, delay: Duration) {
        self.gate.lock().delay = delay;
    }

    /// Lets nothing pass either way while connections stay open, as behind a cable that was pulled;
    /// or lets it pass again, what was held first.
    pub fn hold(&self, held: bool) {
        self.gate.lock().is_held = held;
        self.gate.changed.notify_all();
    }

    /// Lets nothing pass that way on the connections that are open now, as where the other host or
    /// something on the way is gone without a word; new ones work. Says how many there were.
    #[must_use]
    pub fn silence(&self, way: Way) -> usize {
        let state = self.gate.lock();
        for connection in &state.connections {
            connection.is_silent_up.store(way != Way::Down, Ordering::Relaxed);
            connection.is_silent_down.store(way != Way::Up, Ordering::Relaxed);
        }
        state.connections.len()
    }

    /// Ends the silence: what was held back arrives late.
    pub fn heal(&self) {
        let state = self.gate.lock();
        let is_open = |one: &&Arc<Connection>| !one.is_abandoned.load(Ordering::Relaxed);
        for connection in state.connections.iter().filter(is_open) {
            connection.is_silent_up.store(false, Ordering::Relaxed);
            connection.is_silent_down.store(false, Ordering::Relaxed);
        }
        drop(state);
        self.gate.changed.notify_all();
    }

    /// Closes the server's side of the connections that are silent, as a server does that probes them.
    /// Their clients are never notified. Returns how many there were.
    #[must_use]
    pub fn abandon(&self) -> usize {
        let state = self.gate.lock();
        let silent = state.connections.iter().filter(|connection| connection.is_silent());
        silent
            .map(|connection| {
                connection.is_silent_up.store(true, Ordering::Relaxed);
                connection.is_abandoned.store(true, Ordering::Relaxed);
                // A side that is gone needs no closing.
                let _gone = connection.server.shutdown(Shutdown::Both);
            })
            .count()
    }

    /// Leads new connections to the server on another port; those that are open stay.
    pub fn lead_to(&self, server: u16) {
        self.gate.server.store(server, Ordering::Relaxed);
    }

    /// Ends all connections by a reset on the client's side; says how many there were.
    #[must_use]
    pub fn reset(&self) -> usize {
        let connections = std::mem::take(&mut self.gate.lock().connections);
        for connection in &connections {
            // Disconnected, a socket answers with a reset at once, even while another thread reads from it.
            let _gone = rustix::net::connect_unspec(&connection.client);
            connection.close();
        }
        connections.len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.gate.lock().has_ended = true;
        self.gate.changed.notify_all();
        // Its listener waits for a connection.
        let _woken = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(accepts) = self.accepts.take() {
            let _ended = accepts.join();
        }
    }
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for so long, and while it is held; not once the proxy ends.
    fn wait(&self, delay: Duration) {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, delay, |state| !state.has_ended);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let held = |state: &mut State| state.is_held && !state.has_ended;
        drop(self.changed.wait_while(state, held));
    }

    /// Waits while one way of a connection is silent; not once the proxy ends.
    fn wait_for(&self, is_silent: &AtomicBool) {
        let silent = |state: &mut State| is_silent.load(Ordering::Relaxed) && !state.has_ended;
        drop(self.changed.wait_while(self.lock(), silent));
    }
}

fn accept(listener: &TcpListener, gate: &Arc<Gate>) {
    let mut threads = Vec::new();
    while let Ok((client, _)) = listener.accept() {
        if gate.lock().has_ended {
            break;
        }
        // A client of a server that is away is notified by the end of its connection.
        let server = gate.server.load(Ordering::Relaxed);
        threads.extend(serve(client, server, gate).into_iter().flatten());
    }
    for connection in std::mem::take(&mut gate.lock().connections) {
        connection.close();
    }
    for thread in threads {
        let _ended = thread.join();
    }
}

fn serve(client: TcpStream, server: u16, gate: &Arc<Gate>) -> std::io::Result<[JoinHandle<()>; 2]> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
    // A reply's last bytes are not to wait for the next ones.
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let connection = Arc::new(Connection {
        client,
        server,
        is_spared: AtomicBool::new(false),
        is_silent_up: AtomicBool::new(false),
        is_silent_down: AtomicBool::new(false),
        is_abandoned: AtomicBool::new(false),
    });
    let mut state = gate.lock();
    state
        .connections
        .retain(|other| other.is_abandoned.load(Ordering::Relaxed) || Arc::strong_count(other) > 1);
    state.connections.push(Arc::clone(&connection));
    drop(state);
    let spawn = |run: fn(&Connection, &Gate) -> std::io::Result<()>| {
        let (connection, gate) = (Arc::clone(&connection), Arc::clone(gate));
        std::thread::Builder::new().name("proxy".to_owned()).spawn(move || {
            // Either end closes both, except where the client must not notice.
            let _why = run(&connection, &gate);
            if !connection.is_abandoned.load(Ordering::Relaxed) {
                connection.close();
            }
        })
    };
    Ok([spawn(up)?, spawn(down)?])
}

fn up(connection: &Connection, gate: &Gate) -> std::io::Result<()> {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let said = read(&connection.client, &mut bytes)?;
        let words = &gate.spared;
        if !words.is_empty() && said.windows(words.len()).any(|part| part == words) {
            connection.is_spared.store(true, Ordering::Relaxed);
        }
        if !connection.is_spared.load(Ordering::Relaxed) {
            gate.wait(Duration::ZERO);
        }
        gate.wait_for(&connection.is_silent_up);
        (&connection.server).write_all(said)?;
    }
}

fn down(connection: &Connection, gate: &Gate) -> std::io::Result<()> {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let said = read(&connection.server, &mut bytes)?;
        let (passing, ends) = match connection.is_spared.load(Ordering::Relaxed) {
            true => (said.len(), false),
            false => {
                let delay = gate.lock().delay;
                gate.wait(delay);
                gate.lock().pass(said)
            }
        };
        gate.wait_for(&connection.is_silent_down);
        (&connection.client).write_all(said.get(..passing).unwrap_or_default())?;
        if ends {
            return Ok(());
        }
    }
}

/// The next bytes; an error at the end.
fn read<'b>(mut stream: &TcpStream, bytes: &'b mut [u8]) -> std::io::Result<&'b [u8]> {
    match stream.read(bytes)? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        length => Ok(bytes.get(..length).unwrap_or_default()),
    }
}
