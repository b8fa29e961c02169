//! Where the server listens, and what of the connections there is trusted: addresses, Unix sockets, the certificate,
//! and the proxies in between.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use utoipa::ToSchema;

use super::parse::RawServer;
use crate::handlers::Allowed;
use crate::tls::{Pair, PairFiles};

/// The address of a server without a setting.
const DEFAULT: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7777));
/// The most places of one server.
const MOST: usize = 8;
/// What the name of a Unix socket begins with.
const UNIX: &str = "unix:";
/// The longest path of a Unix socket, as Linux has it.
const MAX_SOCKET_PATH: usize = 107;
/// The rights of a Unix socket without a setting.
const SOCKET_MODE: u32 = 0o600;
/// The shortest that a session may last.
const MIN_SESSION: Duration = Duration::from_secs(1);
/// The longest that a session may last.
const MAX_SESSION: Duration = Duration::from_secs(30 * 86_400);

/// A place where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// An address and port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp(address) => address.fmt(f),
            Place::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// All places where the server listens: one at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen(Vec<Place>);

impl Default for Listen {
    fn default() -> Self {
        Listen(vec![Place::Tcp(DEFAULT)])
    }
}

impl Listen {
    /// The places, in the order of the file.
    #[must_use]
    pub fn places(&self) -> &[Place] {
        &self.0
    }

    /// Its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.iter().filter_map(|place| match place {
            Place::Tcp(address) => Some(*address),
            Place::Unix(_) => None,
        })
    }

    /// An address that other machines may reach.
    pub(super) fn open_address(&self) -> Option<SocketAddr> {
        self.addresses().find(|address| !address.ip().is_loopback())
    }

    /// Whether targets of calls find an address of it: one that is not that of all interfaces.
    pub(super) fn has_a_url(&self) -> bool {
        self.addresses().next().is_some_and(|address| !address.ip().is_unspecified())
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self.0.iter().map(Place::to_string).collect();
        f.write_str(&places.join(", "))
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct OneOrMore;

        impl<'de> Visitor<'de> for OneOrMore {
            type Value = Listen;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address and port, or a list of them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Listen, E> {
                place(text).map(|place| Listen(vec![place])).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Listen, A::Error> {
                let mut places = Vec::new();
                while let Some(text) = list.next_element::<String>()? {
                    let place = place(&text).map_err(de::Error::custom)?;
                    if places.contains(&place) {
                        return Err(de::Error::custom(format!("{text:?} is there twice")));
                    }
                    places.push(place);
                }
                if places.is_empty() || places.len() > MOST {
                    let message = format!("{} places: give 1 to {MOST}", places.len());
                    return Err(de::Error::custom(message));
                }
                Ok(Listen(places))
            }
        }

        from.deserialize_any(OneOrMore)
    }
}

fn place(text: &str) -> Result<Place, String> {
    if let Some(path) = text.strip_prefix(UNIX) {
        if path.is_empty() || path.contains('\0') {
            return Err(format!("{text:?} has no path: write unix:/run/quell/quell.sock"));
        }
        return Ok(Place::Unix(PathBuf::from(path)));
    }
    text.parse().map(Place::Tcp).map_err(|_| {
        format!(
            "{text:?} is not an address and port: write 127.0.0.1:7777, [::1]:7777 or \
             unix:/run/quell/quell.sock"
        )
    })
}

/// The files of the certificate.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTls {
    /// the PEM file of the certificate for [HTTPS](server.md#https), followed by those of its authorities.
    /// It and the key are read again when they have changed
    #[schema(value_type = String)]
    cert_file: String,
    /// the PEM file of its key, for the server's user alone: mode 0600 or 0640
    #[schema(value_type = String)]
    key_file: String,
}

/// The rights of Unix sockets, in octal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mode(u32);

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o777);
        mode.map(Mode).ok_or_else(|| {
            de::Error::custom(format!("{text:?} is not a file mode: write \"0600\" or \"0660\""))
        })
    }
}

/// A proxy whose headers about its callers are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Proxy {
    /// One that connects by a Unix socket.
    Unix,
    Subnet(Allowed),
}

/// The proxies whose headers about their callers are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<Proxy>);

impl TrustedProxies {
    /// Whether one of them has this address; of none, whether those on Unix sockets are trusted.
    #[must_use]
    pub fn trust(&self, address: Option<IpAddr>) -> bool {
        self.0.iter().any(|proxy| match (proxy, address) {
            (Proxy::Subnet(subnet), Some(address)) => subnet.covers("", address.to_canonical()),
            (Proxy::Unix, None) => true,
            (Proxy::Subnet(_), None) | (Proxy::Unix, Some(_)) => false,
        })
    }
}

/// How long sessions last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTimes {
    /// Without a request.
    pub idle: Duration,
    /// In all.
    pub most: Duration,
}

/// What the settings of connections amount to.
pub(super) struct Connections {
    pub(super) listen: Listen,
    pub(super) socket_mode: u32,
    pub(super) tls: Option<Pair>,
    pub(super) trusted_proxies: TrustedProxies,
    pub(super) session: SessionTimes,
}

/// Reads the settings of connections, with a note of each that cannot be meant.
pub(super) fn connections(
    raw: &RawServer,
    folder: &Path,
    note: &mut impl FnMut(&str, String),
) -> Connections {
    let mut listen = raw.listen.clone().unwrap_or_default();
    for place in &mut listen.0 {
        let Place::Unix(path) = place else { continue };
        *path = folder.join(&*path);
        let bytes = path.as_os_str().len();
        if bytes > MAX_SOCKET_PATH {
            let message =
                format!("the socket's path has {bytes} bytes: give {MAX_SOCKET_PATH} at most");
            note("server.listen", message);
        }
    }
    let files = raw.tls.as_ref().map(|raw| PairFiles {
        cert: folder.join(&raw.cert_file),
        key: folder.join(&raw.key_file),
    });
    let tls = files.and_then(|files| match Pair::read(files) {
        Ok(pair) => Some(pair),
        Err((field, message)) => {
            note(field, message);
            None
        }
    });
    if tls.is_some() && listen.addresses().next().is_none() {
        let why = "only Unix sockets are listened on, which have no TLS: leave it out";
        note("server.tls", why.to_owned());
    }
    Connections {
        listen,
        socket_mode: raw.socket_mode.map_or(SOCKET_MODE, |mode| mode.0),
        tls,
        trusted_proxies: proxies(&raw.trusted_proxies, note),
        session: session(raw, note),
    }
}

fn proxies(texts: &[String], note: &mut impl FnMut(&str, String)) -> TrustedProxies {
    let mut proxies = Vec::new();
    for text in texts {
        match text.parse() {
            Ok(Allowed::Host(name)) if name == "unix" => proxies.push(Proxy::Unix),
            Ok(subnet @ Allowed::Subnet(..)) => proxies.push(Proxy::Subnet(subnet)),
            Ok(Allowed::Host(_)) | Err(_) => {
                let remedy = "write 127.0.0.1, 10.0.0.0/8, or unix for Unix sockets";
                note("server.trusted_proxies", format!("{text:?} is not a subnet: {remedy}"));
            }
        }
    }
    TrustedProxies(proxies)
}

fn session(raw: &RawServer, note: &mut impl FnMut(&str, String)) -> SessionTimes {
    let idle = raw.session_idle.map_or(Duration::from_secs(3_600), |length| length.0);
    let most = raw.session_max.map_or(Duration::from_secs(12 * 3_600), |length| length.0);
    for (field, time) in [("server.session_idle", idle), ("server.session_max", most)] {
        if !(MIN_SESSION..=MAX_SESSION).contains(&time) {
            note(field, format!("{time:?} is out of bounds: give 1s to 720h"));
        }
    }
    SessionTimes { idle, most }
}
