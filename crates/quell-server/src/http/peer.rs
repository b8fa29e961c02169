//! Who is at the other end of a connection: its own address, or the one that a trusted proxy names.
//!
//! Headers about callers are read of trusted proxies only, and from their end: a caller writes what it likes to the
//! beginning. Invariant: what cannot be read never makes a request fail, and never counts as an address.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{FORWARDED, HOST};
use axum::http::{HeaderMap, HeaderName};

use crate::config::TrustedProxies;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The proxies of one request that are looked at; what stands before them is not read.
const MOST_HOPS: usize = 32;
/// The longest name of a caller's own host, in bytes.
const MAX_HOST: usize = 260;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address; none on a Unix socket.
    address: Option<IpAddr>,
    /// Its user, on a Unix socket.
    user: Option<u32>,
    is_tls: bool,
}

impl Peer {
    /// A connection from an address.
    #[must_use]
    pub fn of_address(address: IpAddr) -> Self {
        Peer { address: Some(address.to_canonical()), user: None, is_tls: false }
    }

    /// A connection by a Unix socket, of a user.
    #[must_use]
    pub fn of_user(user: Option<u32>) -> Self {
        Peer { address: None, user, is_tls: false }
    }

    /// Whether it is by TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The same by TLS.
    #[must_use]
    pub fn by_tls(self) -> Self {
        Peer { is_tls: true, ..self }
    }
}

/// How a caller reached the server.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    /// Its address; none where it is a local user's, or unknown.
    pub(super) address: Option<IpAddr>,
    /// The same as people read it.
    pub(super) shown: Option<String>,
    /// `https` or `http`, where that is known.
    pub(super) scheme: Option<&'static str>,
    /// The host that it named, where a proxy says so.
    pub(super) host: Option<String>,
}

impl Client {
    /// The caller behind a connection, as far as trusted proxies name it.
    pub(super) fn of(peer: Option<&Peer>, headers: &HeaderMap, proxies: &TrustedProxies) -> Self {
        let Some(peer) = peer else { return Client::default() };
        let own = Client {
            address: peer.address,
            shown: peer.address.map(|address| address.to_string()).or_else(|| {
                Some(peer.user.map_or_else(|| "unix".to_owned(), |user| format!("unix:{user}")))
            }),
            scheme: Some(if peer.is_tls { "https" } else { "http" }),
            host: None,
        };
        if !proxies.trust(peer.address) {
            // A proxy that is not listed may have ended TLS.
            return Client { scheme: own.scheme.filter(|_| peer.is_tls), ..own };
        }
        let by_list = behind(proxies, of_list(headers));
        let by_standard = behind(proxies, of_standard(headers));
        // A proxy writes one of the two, and passes the other on as the caller wrote it.
        let address = match (by_list, by_standard) {
            (Some(one), Some(other)) if one != other => None,
            (one, other) => one.or(other),
        };
        let scheme = match last(headers, &FORWARDED_PROTO) {
            Some(text) if text.eq_ignore_ascii_case("https") => Some("https"),
            Some(text) if text.eq_ignore_ascii_case("http") => Some("http"),
            Some(_) | None => None,
        };
        let host = last(headers, &FORWARDED_HOST);
        Client {
            address: address.or(own.address),
            shown: address.map(|address| address.to_string()).or(own.shown),
            scheme,
            host: host.filter(|host| host.len() <= MAX_HOST).map(str::to_owned),
        }
    }

    /// The host that it named, with the port.
    pub(super) fn host<'a>(&'a self, headers: &'a HeaderMap) -> Option<&'a str> {
        let own = || headers.get(HOST).and_then(|host| host.to_str().ok());
        self.host.as_deref().or_else(own)
    }
}

/// The nearest address that is not one of the proxies; of proxies alone, the farthest.
fn behind<'a>(
    proxies: &TrustedProxies,
    from_the_end: impl Iterator<Item = &'a str>,
) -> Option<IpAddr> {
    let mut farthest = None;
    for text in from_the_end.take(MOST_HOPS) {
        // Whatever stands before it is of no one who is known.
        let Some(address) = address(text) else { return farthest };
        farthest = Some(address);
        if !proxies.trust(Some(address)) {
            return farthest;
        }
    }
    farthest
}

/// The entries of `X-Forwarded-For`, the last first.
fn of_list(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    parts(headers, &FORWARDED_FOR)
}

/// The `for` of each entry of `Forwarded`, the last first.
fn of_standard(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    parts(headers, &FORWARDED).map(|entry| {
        let mut pairs = entry.split(';').filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"));
        found.map_or("", |(_, value)| value.trim().trim_matches('"'))
    })
}

/// The parts between commas of all lines of a header, the last first. Lines that are no ASCII are one unreadable part.
fn parts<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> + use<'h> {
    let lines: Vec<_> = headers.get_all(name).iter().collect();
    let lines = lines.into_iter().rev().map(|line| line.to_str().unwrap_or(""));
    lines.flat_map(|line| line.rsplit(',')).map(str::trim)
}

/// The last part of a header.
fn last<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    parts(headers, name).next().filter(|text| !text.is_empty())
}

/// An address with or without a port, in brackets or not.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let parsed = bare.parse::<IpAddr>().ok();
    let parsed = parsed.or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()));
    parsed.map(|address| address.to_canonical())
}
