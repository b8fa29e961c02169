//! Which addresses an HTTP handler may connect to.
//!
//! A URL comes from the configuration, but names resolve where others decide. So every address is
//! checked after resolution and before the connection, and what is not public is refused unless
//! the task's `allow` list names its subnet or host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use quell::{Error, Result};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// A subnet or host name that may be connected to although it is not public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// A subnet: an address and how many of its bits count.
    Subnet(IpAddr, u8),
    /// A host name, as it stands in the URL.
    Host(String),
}

impl FromStr for Allowed {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = || {
            let message = format!("{text:?} is neither a subnet (10.0.0.0/8) nor a host name");
            Err(Error::invalid("allow", message))
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        match (address.parse::<IpAddr>(), bits) {
            (Ok(address), bits) => {
                let all = if address.is_ipv4() { 32 } else { 128 };
                match bits.map_or(Ok(all), str::parse) {
                    Ok(bits) if bits <= all => Ok(Allowed::Subnet(address, bits)),
                    Ok(_) | Err(_) => refuse(),
                }
            }
            (Err(_), None) if is_host_name(text) => Ok(Allowed::Host(text.to_ascii_lowercase())),
            (Err(_), _) => refuse(),
        }
    }
}

fn is_host_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.' || c == '_';
    !text.is_empty() && text.len() <= 253 && text.chars().all(allowed)
}

impl Allowed {
    /// Whether it is for this host, or has this address.
    pub(crate) fn covers(&self, host: &str, address: IpAddr) -> bool {
        match self {
            Allowed::Host(name) => name.eq_ignore_ascii_case(host),
            Allowed::Subnet(IpAddr::V4(net), bits) => match address {
                IpAddr::V4(address) => {
                    let mask = u32::MAX.checked_shl(32 - u32::from(*bits)).unwrap_or(0);
                    net.to_bits() & mask == address.to_bits() & mask
                }
                IpAddr::V6(_) => false,
            },
            Allowed::Subnet(IpAddr::V6(net), bits) => match address {
                IpAddr::V6(address) => {
                    let mask = u128::MAX.checked_shl(128 - u32::from(*bits)).unwrap_or(0);
                    net.to_bits() & mask == address.to_bits() & mask
                }
                IpAddr::V4(_) => false,
            },
        }
    }
}

/// Whether `host` may be connected to at `address`.
#[must_use]
pub(super) fn may_connect(host: &str, address: IpAddr, allowed: &[Allowed]) -> bool {
    let address = address.to_canonical();
    is_public(address) || allowed.iter().any(|entry| entry.covers(host, address))
}

/// Whether an address belongs to the public internet, by the registries of RFC 6890 and its
/// successors.
#[must_use]
pub(super) fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || address.is_documentation();
    let this_network = a == 0;
    let carrier_nat = a == 100 && (64..128).contains(&b);
    let protocol = a == 192 && b == 0 && c == 0;
    let six_to_four_relay = a == 192 && b == 88 && c == 99;
    let benchmarking = a == 198 && (b == 18 || b == 19);
    let reserved = a >= 240;
    !(special
        || this_network
        || carrier_nat
        || protocol
        || six_to_four_relay
        || benchmarking
        || reserved)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    // Only 2000::/3 is global unicast; that leaves out loopback, ULA, link-local, multicast,
    // NAT64 (64:ff9b::/32), discard (100::/64) and SRv6 (5f00::/16).
    let global = a & 0xe000 == 0x2000;
    let protocol = a == 0x2001 && b < 0x0200;
    let documentation = (a == 0x2001 && b == 0x0db8) || (a == 0x3fff && b < 0x1000);
    let six_to_four = a == 0x2002;
    global && !(protocol || documentation || six_to_four)
}

/// Resolves names by the system, and hands out only addresses that may be connected to.
#[derive(Clone, Debug)]
pub(super) struct Guard(pub(super) Arc<[Allowed]>);

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let allowed = Arc::clone(&self.0);
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found = tokio::net::lookup_host((host.as_str(), 0)).await?;
            let found: Vec<SocketAddr> = found.collect();
            let may = |address: &SocketAddr| may_connect(&host, address.ip(), &allowed);
            let usable: Vec<SocketAddr> = found.into_iter().filter(may).collect();
            if usable.is_empty() {
                return Err(forbidden(&host).into());
            }
            Ok(Box::new(usable.into_iter()) as Addrs)
        })
    }
}

/// Why a host is not connected to, and what to do.
#[must_use]
pub(super) fn forbidden(host: &str) -> String {
    format!(
        "host {host:?} has no public address: add it to `allow` of the task's `http` table to permit it"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_not_public_are_refused() {
        let refused = [
            "127.0.0.1",
            "127.8.8.8",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.127.255.255",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "239.255.255.255",
            "255.255.255.255",
            "240.0.0.1",
            "192.0.2.1",
            "198.51.100.1",
            "203.0.113.1",
            "198.18.0.1",
            "198.19.255.255",
            "192.0.0.1",
            "192.88.99.1",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "fe80::1",
            "fc00::1",
            "fd12:3456::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "2002:7f00:1::",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "100::1",
            "5f00::1",
            "3fff::1",
        ];
        for text in refused {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        let public = ["8.8.8.8", "1.1.1.1", "100.63.255.255", "172.32.0.1", "2606:4700::1111"];
        for text in public {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn the_allow_list_lifts_the_block_by_subnet_or_name() {
        let table = [
            ("127.0.0.0/8", "x", "127.9.9.9", true),
            ("127.0.0.0/8", "x", "::ffff:127.0.0.1", true),
            ("127.0.0.1", "x", "127.0.0.2", false),
            ("::1/128", "x", "::1", true),
            ("0.0.0.0/0", "x", "10.0.0.1", true),
            ("localhost", "localhost", "127.0.0.1", true),
            ("localhost", "LOCALHOST", "127.0.0.1", true),
            ("localhost", "evil.test", "127.0.0.1", false),
        ];
        for (entry, host, address, expected) in table {
            let allowed = [entry.parse::<Allowed>().unwrap()];
            let may = may_connect(host, address.parse().unwrap(), &allowed);
            assert_eq!(may, expected, "{entry} for {host} at {address}");
        }
        for bad in ["", "10.0.0.0/33", "10.0.0.0/x", "a b", "::1/129", "http://x"] {
            assert_eq!(bad.parse::<Allowed>().unwrap_err().field(), Some("allow"), "{bad}");
        }
    }
}
