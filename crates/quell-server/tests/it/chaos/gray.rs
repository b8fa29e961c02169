//! Servers that fail by halves: behind an address that falls silent, leads to a replica, or to a pooler
//! that loses its server.

use std::time::{Duration, Instant};

use quell_services::proxy::{Proxy, Way};
use quell_services::{PgBouncer, Pooling, Postgres, Redis};

use super::fault::{Fault, Kind, Side};
use super::processes::{CALLERS, Processes};

/// The deadline of calls, so that a run sees silence before it and after it.
pub(super) const DEADLINE: &str = "timeout_ms=1000";

/// Handlers' own transactions that a silent connection stalls are undone.
const STALLED: &str = "idle_in_transaction_session_timeout=5s";

/// A server that its clients reach by an address, and its replica.
pub(super) struct Gray {
    // In this order: what leads to a server ends before it.
    pooler: Option<PgBouncer>,
    proxy: Proxy,
    servers: Servers,
}

enum Servers {
    /// The primary, and a standby that follows it; behind a pooler there is none.
    Postgres(Box<Postgres>, Option<Box<Postgres>>),
    /// The master, and a replica that follows it.
    Redis(Box<Redis>, Box<Redis>),
}

impl Gray {
    pub(super) fn postgres() -> Gray {
        let primary = Postgres::start(&["max_connections=200", STALLED]).unwrap();
        let standby = primary.standby().unwrap();
        let proxy = Proxy::start(primary.port()).unwrap();
        let servers = Servers::Postgres(Box::new(primary), Some(Box::new(standby)));
        Gray { pooler: None, proxy, servers }
    }

    pub(super) fn pooled() -> Gray {
        let server = Postgres::start(&["max_connections=80", STALLED]).unwrap();
        let proxy = Proxy::start(server.port()).unwrap();
        let pooler = Some(PgBouncer::start_at(proxy.port(), Pooling::Transaction).unwrap());
        Gray { pooler, proxy, servers: Servers::Postgres(Box::new(server), None) }
    }

    pub(super) fn redis() -> Gray {
        let durable = ["appendonly yes", "appendfsync always", "repl-diskless-sync-delay 0"];
        let (master, replica) = (Redis::start(&durable).unwrap(), Redis::start(&durable).unwrap());
        replica.follow(&master).unwrap();
        let proxy = Proxy::start(master.port()).unwrap();
        let servers = Servers::Redis(Box::new(master), Box::new(replica));
        Gray { pooler: None, proxy, servers }
    }

    pub(super) fn url(&self) -> String {
        let port = self.proxy.port();
        match (&self.servers, &self.pooler) {
            (Servers::Redis(..), _) => format!("redis://127.0.0.1:{port}/?{DEADLINE}"),
            (Servers::Postgres(..), Some(pooler)) => {
                format!("{}?connections=4&{DEADLINE}", pooler.url())
            }
            (Servers::Postgres(..), None) => {
                format!("postgres://quell@127.0.0.1:{port}/postgres?connections=4&{DEADLINE}")
            }
        }
    }

    pub(super) fn is_redis(&self) -> bool {
        matches!(self.servers, Servers::Redis(..))
    }

    /// The server that the address leads to.
    pub(super) fn postgres_mut(&mut self) -> &mut Postgres {
        match &mut self.servers {
            Servers::Postgres(primary, _) => primary,
            Servers::Redis(..) => panic!("this is no PostgreSQL"),
        }
    }

    /// The server that the address leads to.
    pub(super) fn redis_mut(&mut self) -> &mut Redis {
        match &mut self.servers {
            Servers::Redis(master, _) => master,
            Servers::Postgres(..) => panic!("this is no Redis"),
        }
    }

    /// Lets everything through that is held back.
    pub(super) fn calm(&self) {
        self.proxy.hold(false);
        self.proxy.heal();
    }

    pub(super) async fn harm(&mut self, processes: &Processes, fault: Fault) {
        let Fault { kind, member, length } = fault;
        match kind {
            Kind::Silent(side) => {
                assert!(self.proxy.silence(way(side)) > 0, "there was no connection");
                tokio::time::sleep(length).await;
                self.proxy.heal();
            }
            Kind::Lost(side) => {
                assert!(self.proxy.silence(way(side)) > 0, "there was no connection");
                tokio::time::sleep(length).await;
                assert!(self.proxy.abandon() > 0, "there was no silent connection");
            }
            Kind::Hole => {
                self.proxy.hold(true);
                tokio::time::sleep(length).await;
                self.proxy.hold(false);
            }
            Kind::StopInCalls => {
                let holds = |held| self.proxy.hold(held);
                // Without a call the fault is a stop as any other.
                let _waited = processes.stop_in_calls(member, length, holds).await;
            }
            Kind::EndIdle => {
                processes.stop_caller(member % CALLERS, async || self.end_idle().await).await
            }
            Kind::HandOver => self.hand_over(length).await,
            other => unreachable!("{other:?} is no gray fault"),
        }
    }

    /// The server ends connections that idle: those of a stopped caller, where it has one.
    async fn end_idle(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        match &self.servers {
            Servers::Postgres(primary, _) => {
                while primary.end_idle("quell").unwrap() == 0 && Instant::now() < deadline {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            Servers::Redis(master, _) => {
                let count = || {
                    let about = master.command(&["CLIENT", "LIST", "TYPE", "normal"]).unwrap();
                    about.lines().count()
                };
                let all = count();
                master.command(&["CONFIG", "SET", "timeout", "1"]).unwrap();
                while count() >= all && Instant::now() < deadline {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                master.command(&["CONFIG", "SET", "timeout", "0"]).unwrap();
            }
        }
    }

    /// The replica takes over without a loss. What connects meanwhile finds the old server, and what is
    /// connected to it stays so.
    async fn hand_over(&mut self, length: Duration) {
        let port = match &mut self.servers {
            Servers::Postgres(primary, standby) => {
                let standby = standby.as_mut().expect("a standby");
                primary.hand_over(standby).unwrap();
                std::mem::swap(primary, standby);
                primary.port()
            }
            Servers::Redis(master, replica) => {
                master.hand_over(replica).unwrap();
                std::mem::swap(master, replica);
                master.port()
            }
        };
        tokio::time::sleep(length).await;
        self.proxy.lead_to(port);
    }
}

impl Gray {
    /// The replica becomes a server of its own: it receives nothing that is written from now on.
    pub(super) fn split(&self) {
        match &self.servers {
            Servers::Postgres(_, standby) => {
                standby.as_ref().expect("a standby").promote().unwrap()
            }
            Servers::Redis(_, replica) => {
                drop(replica.command(&["REPLICAOF", "NO", "ONE"]).unwrap())
            }
        }
    }

    /// The server ends without a word, and the address leads nowhere. Returns where the other one is.
    pub(super) fn lose(&mut self) -> String {
        match &mut self.servers {
            Servers::Postgres(primary, standby) => {
                primary.kill().unwrap();
                std::mem::swap(primary, standby.as_mut().expect("a standby"));
                primary.url()
            }
            Servers::Redis(master, replica) => {
                master.kill().unwrap();
                std::mem::swap(master, replica);
                master.url()
            }
        }
    }

    /// The address leads to the server that there is.
    pub(super) fn lead(&self) {
        let port = match &self.servers {
            Servers::Postgres(primary, _) => primary.port(),
            Servers::Redis(master, _) => master.port(),
        };
        self.proxy.lead_to(port);
    }
}

fn way(side: Side) -> Way {
    match side {
        Side::Clients => Way::Up,
        Side::Server => Way::Down,
        Side::Both => Way::Both,
    }
}
