//! What a chaos run happens on: a file or a server of its own, and how it is hurt.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell::store::Store;
use quell::{ErrorKind, Quell};
use quell_services::{Postgres, Redis, RedisCluster};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection, SqliteConnection};

use super::fault::{Fault, Kind};
use super::gray::{DEADLINE, Gray};
use super::processes::Processes;

/// A store that processes share.
pub(super) enum Ground {
    /// A file, and a connection of another program to it.
    Sqlite(String, SqliteConnection),
    /// A server.
    Postgres(Box<Postgres>),
    /// A server that keeps all it has acknowledged.
    Redis(Box<Redis>),
    /// Servers behind an address that may fall silent and lead elsewhere.
    Gray(Box<Gray>),
    /// Three masters that keep all they have acknowledged, each with its own part of the queues.
    Cluster(RedisCluster),
}

impl Ground {
    pub(super) async fn sqlite(folder: &Path) -> Ground {
        let file = folder.join("q.db");
        let url = format!("sqlite://{}", file.display());
        // The first process makes the file.
        drop(Quell::open(&url).await.unwrap());
        let options = SqliteConnectOptions::new().filename(file);
        let outsider = options.busy_timeout(Duration::from_secs(20)).connect().await.unwrap();
        Ground::Sqlite(url, outsider)
    }

    pub(super) fn postgres() -> Ground {
        Ground::Postgres(Box::new(Postgres::start(&["max_connections=80"]).unwrap()))
    }

    pub(super) fn redis() -> Ground {
        let durable = ["appendonly yes", "appendfsync always"];
        Ground::Redis(Box::new(Redis::start(&durable).unwrap()))
    }

    /// Two servers of PostgreSQL behind one address.
    pub(super) fn gray_postgres() -> Ground {
        Ground::Gray(Box::new(Gray::postgres()))
    }

    /// Two servers of Redis behind one address.
    pub(super) fn gray_redis() -> Ground {
        Ground::Gray(Box::new(Gray::redis()))
    }

    /// A pooler before an address that leads to PostgreSQL.
    pub(super) fn pooled_postgres() -> Ground {
        Ground::Gray(Box::new(Gray::pooled()))
    }

    pub(super) fn cluster() -> Ground {
        let durable = ["appendonly yes", "appendfsync always", "cluster-require-full-coverage no"];
        Ground::Cluster(RedisCluster::start(3, 0, &durable).unwrap())
    }

    pub(super) fn url(&self) -> String {
        match self {
            Ground::Gray(gray) => gray.url(),
            Ground::Cluster(cluster) => {
                format!("redis-cluster://{}/?{DEADLINE}", cluster.nodes())
            }
            Ground::Sqlite(url, _) => url.clone(),
            Ground::Postgres(server) => format!("{}?connections=4", server.url()),
            Ground::Redis(server) => format!("{}?{DEADLINE}", server.url()),
        }
    }

    /// The store, for the judge, who is in no hurry. The last fault may have been a server's crash.
    pub(super) async fn store(&self) -> Arc<dyn Store> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let url = self.url().replace(DEADLINE, "timeout_ms=30000");
            match Quell::open(&url).await {
                Ok(quell) => return Arc::clone(quell.store()),
                Err(error) => assert!(
                    error.kind() == ErrorKind::Unavailable && Instant::now() < deadline,
                    "{error}"
                ),
            }
        }
    }

    /// Does harm to the processes or to what they share.
    pub(super) async fn harm(&mut self, processes: &mut Processes, fault: Fault) {
        let Fault { kind, member, length } = fault;
        match kind {
            Kind::KillWorker => processes.kill_worker(member).await,
            Kind::KillCaller => processes.kill_caller(member % super::processes::CALLERS).await,
            Kind::Stop => processes.stop_worker(member, length).await,
            Kind::Term => processes.term_worker(member).await,
            Kind::FullForCaller => processes.fill_disk_of_caller(member, length).await,
            Kind::FullForWorker => processes.fill_disk_of_worker(member, length).await,
            Kind::Deploy => processes.deploy().await,
            Kind::Lock => self.lock(length).await,
            Kind::Checkpoint => self.checkpoint().await,
            Kind::KillInCheckpoint => {
                let kill = async { processes.kill_worker_now(member) };
                tokio::join!(self.checkpoint(), kill);
            }
            Kind::Cut => self.cut(),
            Kind::KillSession => self.server().kill_session("quell").unwrap(),
            Kind::KillServer => self.kill_server(),
            Kind::Outage => {
                self.stop();
                tokio::time::sleep(length).await;
                self.resume();
            }
            Kind::Freeze => {
                self.redis_server().pause().unwrap();
                tokio::time::sleep(length).await;
                self.redis_server().go_on().unwrap();
            }
            Kind::Forget => drop(self.redis_server().command(&["SCRIPT", "FLUSH"]).unwrap()),
            Kind::Impatient => self.impatient(length).await,
            Kind::NoConnections => self.no_connections(length).await,
            Kind::Silent(_)
            | Kind::Lost(_)
            | Kind::Hole
            | Kind::StopInCalls
            | Kind::EndIdle
            | Kind::HandOver => self.gray().harm(processes, fault).await,
            Kind::PauseQueue | Kind::PauseTask => unreachable!("operators pause"),
        }
    }

    /// Kills the server and starts it again.
    fn kill_server(&mut self) {
        if self.is_redis() {
            self.redis_server().kill().unwrap();
            self.redis_server().resume().unwrap();
        } else {
            self.server().kill().unwrap();
            self.server().resume().unwrap();
        }
    }

    /// The server goes away in order, and refuses connections.
    pub(super) fn stop(&mut self) {
        if self.is_redis() {
            self.redis_server().stop().unwrap();
        } else {
            self.server().stop().unwrap();
        }
    }

    /// It comes back.
    pub(super) fn resume(&mut self) {
        if self.is_redis() {
            self.redis_server().resume().unwrap();
        } else {
            self.server().resume().unwrap();
        }
    }

    /// Does no more harm: everything that is said arrives.
    pub(super) fn calm(&self) {
        if let Ground::Gray(gray) = self {
            gray.calm();
        }
    }

    fn is_redis(&self) -> bool {
        match self {
            Ground::Redis(_) => true,
            Ground::Gray(gray) => gray.is_redis(),
            Ground::Cluster(_) => true,
            Ground::Sqlite(..) | Ground::Postgres(_) => false,
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Ground::Cluster(_))
    }

    pub(super) fn gray(&mut self) -> &mut Gray {
        match self {
            Ground::Gray(gray) => gray,
            _ => panic!("nothing stands before this store"),
        }
    }

    pub(super) fn masters(&mut self) -> &mut RedisCluster {
        match self {
            Ground::Cluster(cluster) => cluster,
            _ => panic!("this is no Cluster"),
        }
    }

    /// How many connections were made since it came back, where it says so.
    pub(super) fn connections(&self) -> Option<usize> {
        let Ground::Redis(server) = self else { return None };
        let stats = server.command(&["INFO", "stats"]).unwrap();
        let count = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        Some(count.unwrap().trim().parse().unwrap())
    }

    /// Whether it is sound in the eyes of its engine.
    pub(super) async fn check(&mut self) {
        if let Ground::Sqlite(_, outsider) = self {
            let sound: String =
                sqlx::query_scalar("pragma integrity_check").fetch_one(outsider).await.unwrap();
            assert_eq!(sound, "ok");
        }
    }

    pub(super) fn server(&mut self) -> &mut Postgres {
        match self {
            Ground::Postgres(server) => server,
            Ground::Gray(gray) => gray.postgres_mut(),
            _ => panic!("this is no PostgreSQL"),
        }
    }

    fn redis_server(&mut self) -> &mut Redis {
        match self {
            Ground::Redis(server) => server,
            Ground::Gray(gray) => gray.redis_mut(),
            _ => panic!("this is no single Redis"),
        }
    }

    /// Every connection is cut, in the middle of whatever it does.
    fn cut(&mut self) {
        if self.is_redis() {
            for kind in ["normal", "pubsub"] {
                self.redis_server().command(&["CLIENT", "KILL", "TYPE", kind]).unwrap();
            }
        } else {
            self.server().cut("quell").unwrap();
        }
    }

    /// Another program holds a lock that every call needs.
    async fn lock(&mut self, length: Duration) {
        match self {
            Ground::Sqlite(_, outsider) => {
                let locked = outsider.begin_with("begin immediate").await.unwrap();
                tokio::time::sleep(length).await;
                locked.rollback().await.unwrap();
            }
            Ground::Postgres(server) => {
                let Ok(mut outsider) = PgConnection::connect(&server.url()).await else { return };
                let locked = "begin; lock table quell.job in access exclusive mode";
                if sqlx::raw_sql(locked).execute(&mut outsider).await.is_ok() {
                    tokio::time::sleep(length).await;
                }
            }
            Ground::Redis(server) => {
                let pause = ["CLIENT", "PAUSE", &length.as_millis().to_string(), "WRITE"];
                server.command(&pause).unwrap();
                tokio::time::sleep(length).await;
            }
            _ => panic!("no program locks all of this store"),
        }
    }

    /// Another program moves the log into the database.
    async fn checkpoint(&mut self) {
        if let Ground::Sqlite(_, outsider) = self {
            let checkpoint = sqlx::query("pragma wal_checkpoint(truncate)");
            checkpoint.execute(outsider).await.unwrap();
        }
    }

    /// Statements are cancelled that take longer than a moment.
    async fn impatient(&mut self, length: Duration) {
        let server = self.server();
        for value in [Some("3ms"), None] {
            // New sessions have it.
            server.set_for_sessions("statement_timeout", value).unwrap();
            server.cut("quell").unwrap();
            tokio::time::sleep(length).await;
        }
    }

    /// Other programs take every connection that is left.
    async fn no_connections(&mut self, length: Duration) {
        let (url, mut taken) = (self.server().url(), Vec::new());
        while taken.len() < 100 {
            match PgConnection::connect(&url).await {
                Ok(connection) => taken.push(connection),
                Err(_) => break,
            }
        }
        tokio::time::sleep(length).await;
    }
}
