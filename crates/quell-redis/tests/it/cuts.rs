//! A connection that breaks at any reply of the server, in every call of the store.
//!
//! Each call is made on the same rows again and again, and cut off at another place each time. It
//! must have happened as a whole or not at all, its error must say which of the two where it can
//! (R1), and the store must go on without being opened again (R39).

use std::collections::{BTreeMap, BTreeSet};

use quell_conformance::Rig;
use quell_conformance::calls::{Case, Reported, table};
use quell_conformance::effort::some_of;
use quell_conformance::rig::until;
use quell_core::{ErrorKind, JobId, Result, Store};
use quell_redis::RedisStore;
use quell_services::Redis;
use quell_services::proxy::{Cut, Proxy};
use redis::aio::MultiplexedConnection;

use crate::place::{Place, answers, at_last, dump, make_shard, server};

/// The usual run makes one in this number of a call's cuts, and the last ones.
const TRIED: (u64, usize) = (3, 8);
/// How connections for hints introduce themselves.
const HINTS: &[u8] = b"SUBSCRIBE";
/// Calls that write to several shards, and write again where they are made again.
const OF_SEVERAL_SHARDS: [&str; 2] = ["set_task", "remove_worker"];

/// A server of its own, and a proxy before it.
struct Ground {
    _server: Redis,
    direct: Place,
    cut_off: Place,
    proxy: Proxy,
    redis: MultiplexedConnection,
    /// The first job.
    first: JobId,
    has_shards: bool,
}

impl Ground {
    async fn new() -> Ground {
        let server = server(&[]);
        let direct = Place::on(&server);
        let proxy = Proxy::sparing(server.port(), HINTS).unwrap();
        let url = format!("redis://127.0.0.1:{}/", proxy.port());
        let cut_off = Place { url, prefix: direct.prefix.clone() };
        let redis = direct.connect().await;
        Ground {
            _server: server,
            direct,
            cut_off,
            proxy,
            redis,
            first: JobId::new(1),
            has_shards: false,
        }
    }

    /// A Cluster of one node, which its clients only ever find behind the proxy.
    async fn cluster() -> Ground {
        let server = server(&["cluster-enabled yes"]);
        let proxy = Proxy::sparing(server.port(), HINTS).unwrap();
        let announce = ["CONFIG", "SET", "cluster-announce-port", &proxy.port().to_string()];
        server.command(&announce).unwrap();
        server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).unwrap();
        until("the Cluster is up", async || {
            server.command(&["CLUSTER", "INFO"]).unwrap().contains("cluster_state:ok")
        })
        .await;
        let redis = Place::on(&server).connect().await;
        let url = format!("redis-cluster://127.0.0.1:{}", proxy.port());
        let place = || Place { url: url.clone(), prefix: "quell".to_owned() };
        let (direct, cut_off, first) = (place(), place(), JobId::new(1_025));
        Ground { _server: server, direct, cut_off, proxy, redis, first, has_shards: true }
    }

    /// Lets the rows be those that the case needs, and opens the store behind the proxy.
    async fn begin(&mut self, case: &Case) -> RedisStore {
        redis::cmd("FLUSHALL").exec_async(&mut self.redis).await.unwrap();
        let direct = self.direct.open().await;
        // The directory has the shard beforehand: registering one is no part of a call.
        make_shard(&direct).await;
        (case.given)(&direct, Rig::START, self.first).await.unwrap();
        let store = self.cut_off.open().await;
        if !case.stranger {
            store.counts().await.unwrap();
        }
        store
    }

    /// All rows, but the mark of the newest change of names, which is drawn by lot, and the queue that
    /// tasks with keys keep to, which is written down before.
    async fn rows(&mut self) -> Vec<String> {
        let mut rows = dump(&mut self.redis).await;
        rows.retain(|row| !row.contains(":homes "));
        let may_expire = |row: &String| row.contains(":debounce:") || row.contains(":awaited ");
        let expires = |row: &&String| row.contains(" expires ") && !may_expire(row);
        assert_eq!(rows.iter().find(expires), None, "nothing else is gone by itself");
        for row in rows.iter_mut().filter(|row| row.contains(":meta ")) {
            let fields = row.split(' ').filter(|field| !field.starts_with("version="));
            *row = fields.collect::<Vec<_>>().join(" ");
        }
        for row in rows.iter_mut().filter(|row| row.contains(":ticks")) {
            *row = without_draws(row);
        }
        rows
    }

    /// A call that is cut nowhere: the rows before and after it, and where the replies end.
    async fn whole(&mut self, case: &Case) -> (Vec<String>, Vec<String>, Vec<usize>) {
        let store = self.begin(case).await;
        let before = self.rows().await;
        self.proxy.set(None);
        let answer = (case.call)(&store, Rig::START, self.first).await;
        let (replies, _) = self.proxy.unset();
        answer.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        (before, self.rows().await, ends_of(&replies))
    }

    /// Makes the call, cut off; returns the outcome that its caller received.
    async fn round(&mut self, case: &Case, cut: Cut, known: (&[String], &[String])) -> Reported {
        let (name, (before, after)) = (case.name, known);
        let store = self.begin(case).await;
        assert_eq!(self.rows().await, before, "{name}: each round begins alike");
        self.proxy.set(Some(cut));
        let answer: Result<()> = (case.call)(&store, Rig::START, self.first).await;
        let (_, was_cut) = self.proxy.unset();
        let rows = self.rows().await;
        let happened = rows == after;
        let may_be_half = self.has_shards && OF_SEVERAL_SHARDS.contains(&name);
        let is_whole = happened || rows == before || (may_be_half && answer.is_err());
        assert!(is_whole, "{name}, {cut:?}: half done: {answer:?}\n{rows:#?}");
        let reported = match answer.map_err(|error| error.kind()) {
            Ok(()) => Reported::Done,
            Err(ErrorKind::Unavailable) => Reported::Failed,
            Err(ErrorKind::UnknownOutcome) => Reported::Unknown,
            Err(other) => panic!("{name}, {cut:?}: {other:?}"),
        };
        assert!(was_cut || reported == Reported::Done, "{name}, {cut:?}: failed by itself");
        assert!(reported != Reported::Done || happened, "{name}, {cut:?}: said to be done");
        assert!(
            reported != Reported::Failed || !happened || before == after,
            "{name}, {cut:?}: was done"
        );
        answers(&store).await;
        if !happened {
            // The store is not opened again.
            at_last(name, async || (case.call)(&store, Rig::START, self.first).await).await;
            assert_eq!(self.rows().await, after, "{name}, {cut:?}: done again");
        }
        reported
    }
}

/// A row without what is drawn for a schedule's ticks and for each change of them.
fn without_draws(row: &str) -> String {
    let word = |piece: &str| {
        let word = piece.trim_end_matches(|end: char| !end.is_ascii_alphanumeric());
        let is_drawn = word.len() == 12 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_drawn { piece.replace(word, "drawn") } else { piece.to_owned() }
    };
    row.split_inclusive(|end: char| !end.is_ascii_alphanumeric()).map(word).collect()
}

/// Where each reply ends.
fn ends_of(replies: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = 0;
    // Values that the reply still lacks.
    let mut lacks = 1_usize;
    while at < replies.len() {
        let line = replies[at..].windows(2).position(|end| end == b"\r\n").unwrap() + at;
        let length = || std::str::from_utf8(&replies[at + 1..line]).unwrap().parse::<isize>();
        let length = || usize::try_from(length().unwrap()).ok();
        lacks -= 1;
        at = match replies[at] {
            b'$' => line + 2 + length().map_or(0, |bytes| bytes + 2),
            b'*' => {
                lacks += length().unwrap_or(0);
                line + 2
            }
            _ => line + 2,
        };
        if lacks == 0 {
            ends.push(at);
            lacks = 1;
        }
    }
    assert_eq!((at, lacks), (replies.len(), 1), "the replies are whole");
    ends
}

/// Before each reply, in the middle of it, before its last byte, and after it.
fn cuts_of(ends: &[usize]) -> Vec<Cut> {
    let mut cuts = Vec::new();
    let mut begin = 0;
    for end in ends {
        let last = end.saturating_sub(1);
        let places = BTreeSet::from([begin, (begin + end) / 2, last]);
        cuts.extend(places.into_iter().map(Cut::Before));
        cuts.push(Cut::After(*end));
        begin = *end;
    }
    // After the last reply, no caller is waiting.
    cuts.pop();
    cuts
}

/// Says how each call fared.
async fn cut_each_call(mut ground: Ground) -> String {
    let mut report = String::new();
    let mut rounds = 0;
    for (call, case) in table().into_iter().enumerate() {
        // The first time, the server receives the scripts.
        ground.whole(&case).await;
        let (before, after, ends) = ground.whole(&case).await;
        let mut reported = BTreeMap::new();
        for cut in some_of(cuts_of(&ends), call, TRIED) {
            *reported.entry(ground.round(&case, cut, (&before, &after)).await).or_insert(0) += 1;
            rounds += 1;
        }
        report += &format!("{}: {} replies, {reported:?}\n", case.name, ends.len());
        case.judge(before != after, &reported);
    }
    format!("{report}{rounds} cuts")
}

#[tokio::test]
async fn r01_r39_a_connection_cut_at_any_reply_leaves_no_call_half_done() {
    eprintln!("{}", cut_each_call(Ground::new().await).await);
}

/// The client of a Cluster would send again what it has no answer to.
#[tokio::test]
async fn r01_r39_a_connection_of_a_cluster_cut_at_any_reply_repeats_no_call() {
    eprintln!("{}", cut_each_call(Ground::cluster().await).await);
}
