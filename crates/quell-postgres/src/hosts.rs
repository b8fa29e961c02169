//! The servers that a URL names, and which of them does (as libpq's `target_session_attrs`).
//!
//! Names are resolved again for each connection. The server that was used last is tried first; the
//! others follow in the order of the URL.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quell_core::Error;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, Executor, PgConnection};

use crate::bounded::{Bounded, Era};
use crate::error::{is_final, is_starting, no_host_fits, silent};
use crate::row::get;

/// What a server must be for a connection to it to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TargetSessionAttrs {
    /// Any server.
    #[default]
    Any,
    /// One whose sessions may write.
    ReadWrite,
    /// One whose sessions may not.
    ReadOnly,
    /// One that is no standby.
    Primary,
    /// One that is a standby.
    Standby,
    /// One that is a standby, or any where there is none.
    PreferStandby,
}

impl FromStr for TargetSessionAttrs {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(match text {
            "any" => Self::Any,
            "read-write" => Self::ReadWrite,
            "read-only" => Self::ReadOnly,
            "primary" => Self::Primary,
            "standby" => Self::Standby,
            "prefer-standby" => Self::PreferStandby,
            _ => {
                return Err(Error::invalid(
                    "url",
                    "store url: `target_session_attrs` takes any, read-write, read-only, primary, \
                     standby or prefer-standby",
                ));
            }
        })
    }
}

/// The role of a server.
#[derive(Clone, Copy, Debug)]
struct Role {
    is_standby: bool,
    is_read_only: bool,
}

impl TargetSessionAttrs {
    fn fits(self, role: Role) -> bool {
        match self {
            Self::Any => true,
            Self::ReadWrite => !role.is_read_only,
            Self::ReadOnly => role.is_read_only,
            Self::Primary => !role.is_standby,
            Self::Standby | Self::PreferStandby => role.is_standby,
        }
    }

    /// The roles to look for, in one round over all servers each.
    fn rounds(self) -> &'static [TargetSessionAttrs] {
        match self {
            Self::Any => &[Self::Any],
            Self::ReadWrite => &[Self::ReadWrite],
            Self::ReadOnly => &[Self::ReadOnly],
            Self::Primary => &[Self::Primary],
            Self::Standby => &[Self::Standby],
            Self::PreferStandby => &[Self::Standby, Self::Any],
        }
    }
}

/// The servers of a store.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    all: Vec<PgConnectOptions>,
    target: TargetSessionAttrs,
    /// The server to try first.
    first: Arc<AtomicUsize>,
}

impl Hosts {
    pub(crate) fn one(options: PgConnectOptions) -> Self {
        Hosts { all: vec![options], target: TargetSessionAttrs::Any, first: Arc::default() }
    }

    /// Reads `scheme://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE?OPTIONS`. Several hosts are asked
    /// for one that takes writes, unless said otherwise.
    pub(crate) fn parse(base: &str, query: &str) -> Result<Self, sqlx::Error> {
        let (scheme, rest) = base.split_once("://").unwrap_or(("postgres", base));
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let (user, hosts) = match authority.rfind('@') {
            Some(at) => authority.split_at(at.saturating_add(1)),
            None => ("", authority),
        };
        let mut all = Vec::new();
        for host in hosts.split(',') {
            all.push(PgConnectOptions::from_str(&format!("{scheme}://{user}{host}{path}{query}"))?);
        }
        let mut hosts = Hosts { all, target: TargetSessionAttrs::Any, first: Arc::default() };
        if hosts.all.len() > 1 {
            hosts.target = TargetSessionAttrs::ReadWrite;
        }
        Ok(hosts)
    }

    pub(crate) fn set_target(&mut self, target: TargetSessionAttrs) {
        self.target = target;
    }

    /// The same servers, with other options for each.
    pub(crate) fn with(&self, change: impl Fn(PgConnectOptions) -> PgConnectOptions) -> Self {
        Hosts { all: self.all.iter().cloned().map(change).collect(), ..self.clone() }
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.all.len()).unwrap_or(u32::MAX).max(1)
    }

    /// The servers, from the one that was used last.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &PgConnectOptions> {
        let begin = self.first.load(Ordering::Relaxed);
        self.all.iter().cycle().skip(begin).take(self.all.len())
    }

    /// Connects to the first server with the role asked for; each may take as long as `limit`.
    pub(crate) async fn connect(&self, limit: Duration) -> Result<PgConnection, sqlx::Error> {
        let begin = self.first.load(Ordering::Relaxed);
        let mut failed = None;
        for target in self.target.rounds() {
            for place in (0..self.all.len()).map(|step| begin.saturating_add(step)) {
                let place = place.checked_rem(self.all.len()).unwrap_or(0);
                let Some(options) = self.all.get(place) else { continue };
                let error = match connect(options, *target, limit).await {
                    Ok(db) => {
                        self.first.store(place, Ordering::Relaxed);
                        return Ok(db);
                    }
                    Err(error) if self.all.len() == 1 && is_final(&error) => return Err(error),
                    Err(error) => error,
                };
                // A caller that runs out of time here begins with the next server.
                let next = place.saturating_add(1).checked_rem(self.all.len()).unwrap_or(0);
                self.first.store(next, Ordering::Relaxed);
                // What passes is worth another try, whatever the other servers say.
                if failed.as_ref().is_none_or(|failed| !is_starting(failed)) {
                    failed = Some(error);
                }
            }
        }
        Err(failed.unwrap_or(sqlx::Error::PoolClosed))
    }

    /// As [`Hosts::connect`], for a connection outside a pool.
    pub(crate) async fn connect_alone(&self, limit: Duration) -> Result<Bounded, sqlx::Error> {
        Ok(Bounded::new(self.connect(limit).await?, limit, Arc::<Era>::default()))
    }
}

async fn connect(
    options: &PgConnectOptions,
    target: TargetSessionAttrs,
    limit: Duration,
) -> Result<PgConnection, sqlx::Error> {
    const ROLE: &str =
        "select pg_is_in_recovery(), current_setting('transaction_read_only')::boolean";
    let connected = async {
        let mut db = options.connect().await?;
        if target == TargetSessionAttrs::Any {
            return Ok(db);
        }
        let row = db.fetch_one(sqlx::raw_sql(ROLE)).await?;
        let unknown = |_| sqlx::Error::Protocol("a server without a role".to_owned());
        let role = Role {
            is_standby: get(&row, 0).map_err(unknown)?,
            is_read_only: get(&row, 1).map_err(unknown)?,
        };
        if target.fits(role) { Ok(db) } else { Err(no_host_fits()) }
    };
    tokio::time::timeout(limit, connected).await.unwrap_or_else(|_| Err(silent(limit)))
}

/// Asks a server on another machine for a certificate of its name.
pub(crate) fn verified(options: PgConnectOptions) -> PgConnectOptions {
    if is_local(&options) { options } else { options.ssl_mode(PgSslMode::VerifyFull) }
}

/// Whether no network lies between: a socket, or an address of this machine.
fn is_local(connect: &PgConnectOptions) -> bool {
    let host = connect.get_host();
    connect.get_socket().is_some()
        || host.starts_with('/')
        || host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_hosts_share_what_the_url_says_beside_them() {
        let hosts = Hosts::parse("postgres://u:p%2C@a:1,b,[::1]:3/d", "?sslmode=disable").unwrap();
        let each: Vec<_> = hosts
            .all
            .iter()
            .map(|o| (o.get_host(), o.get_port(), o.get_username(), o.get_database()))
            .collect();
        let expected =
            [("a", 1), ("b", 5432), ("[::1]", 3)].map(|(host, port)| (host, port, "u", Some("d")));
        assert_eq!(each, expected);
        assert_eq!(hosts.target, TargetSessionAttrs::ReadWrite);
        let one = Hosts::parse("postgres://u@a/d", "").unwrap();
        assert_eq!((one.count(), one.target), (1, TargetSessionAttrs::Any));
    }

    #[test]
    fn r40_targets_are_those_of_libpq() {
        let (standby, closed) = (
            Role { is_standby: true, is_read_only: true },
            Role { is_standby: false, is_read_only: true },
        );
        let primary = Role { is_standby: false, is_read_only: false };
        let table = [
            ("any", [true, true, true]),
            ("read-write", [true, false, false]),
            ("read-only", [false, true, true]),
            ("primary", [true, true, false]),
            ("standby", [false, false, true]),
            ("prefer-standby", [false, false, true]),
        ];
        for (text, fits) in table {
            let target: TargetSessionAttrs = text.parse().unwrap();
            assert_eq!([primary, closed, standby].map(|role| target.fits(role)), fits, "{text}");
        }
        let rounds = TargetSessionAttrs::PreferStandby.rounds();
        assert_eq!(rounds, [TargetSessionAttrs::Standby, TargetSessionAttrs::Any]);
        assert!("master".parse::<TargetSessionAttrs>().is_err());
    }
}
