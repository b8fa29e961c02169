//! No time to live carries correctness: every key that has one is removed before every command that
//! the store sends, in the midst of calls as between them, and every answer stays the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_conformance::effort::cases;
use quell_conformance::{Opened, oracle, report};
use quell_services::Redis;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::place::{Place, server};

/// Removes what may be gone at any moment; says how many keys that were.
const REMOVE: &str = "
local removed = 0
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('PTTL', key) >= 0 then removed = removed + redis.call('DEL', key) end
end
return removed";

/// A proxy before a server, by whose time to live nothing lives.
struct Reaper {
    place: Place,
    redis: MultiplexedConnection,
    removed: Arc<AtomicU64>,
    _listens: JoinSet<()>,
}

impl Reaper {
    async fn start(server: &Redis) -> Reaper {
        let behind = Place::on(server);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let redis = behind.connect().await;
        let (removed, port) = (Arc::<AtomicU64>::default(), server.port());
        let (mut listens, shared) = (JoinSet::new(), (redis.clone(), Arc::clone(&removed)));
        listens.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(serve(client, port, shared.clone()));
            }
        });
        let place = Place { url, prefix: behind.prefix };
        Reaper { place, redis, removed, _listens: listens }
    }

    /// A fresh store behind it.
    async fn open(&self) -> Opened {
        redis::cmd("FLUSHALL").exec_async(&mut self.redis.clone()).await.unwrap();
        Opened { store: Arc::new(self.place.open().await), guard: Box::new(()) }
    }
}

async fn serve(
    client: TcpStream,
    server: u16,
    (mut redis, removed): (MultiplexedConnection, Arc<AtomicU64>),
) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from_client.read(&mut bytes).await {
            let gone = redis::cmd("EVAL").arg(REMOVE).arg(0).query_async(&mut redis).await;
            removed.fetch_add(gone.unwrap(), Ordering::Relaxed);
            if to_server.write_all(&bytes[..length]).await.is_err() {
                return;
            }
        }
    };
    // It ends where the server or the client has gone.
    let down = async { drop(tokio::io::copy(&mut from_server, &mut to_client).await) };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

#[tokio::test]
async fn r39_the_suite_passes_where_all_that_expires_is_gone_at_every_moment() {
    let server = server(&[]);
    let reaper = Arc::new(Reaper::start(&server).await);
    let behind = Arc::clone(&reaper);
    let report = report::run("redis", move || {
        let reaper = Arc::clone(&behind);
        async move { reaper.open().await }
    })
    .await;
    assert_eq!(report.failures().count(), 0, "{report}");
    let removed = reaper.removed.load(Ordering::Relaxed);
    assert!(removed > 20, "nothing expires: {removed}");
}

#[test]
fn the_store_answers_like_the_model_where_all_that_expires_is_gone_at_every_moment() {
    let server = server(&[]);
    // Of its own runtime, which runs beside the oracle's.
    let mut beside = tokio::runtime::Builder::new_multi_thread();
    let beside = beside.worker_threads(1).enable_all().build().unwrap();
    let reaper = beside.block_on(Reaper::start(&server));
    let scripts = u32::try_from(cases(24, 240)).unwrap();
    let ran = oracle::run(|| reaper.open(), oracle::COUNTED, scripts, None);
    let removed = reaper.removed.load(Ordering::Relaxed);
    assert!(ran.is_ok(), "{}", ran.unwrap_err());
    assert!(removed > 3, "nothing expires: {removed}");
}
