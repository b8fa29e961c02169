//! A connection that breaks at any byte of the server's replies, in every call of the store.
//!
//! Each call is made on the same rows again and again, and cut off at another place each time. It
//! must have happened as a whole or not at all, its error must say which of the two where it can
//! (R1), and the store must go on without being opened again (R39).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quell_conformance::Rig;
use quell_conformance::calls::{Case, Reported, table};
use quell_conformance::effort::some_of;
use quell_conformance::rig::{secs, until};
use quell_core::{ErrorKind, JobId, Result, Store, Timestamp};
use quell_postgres::PostgresStore;
use quell_services::{PgBouncer, Pooling};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::proxy::{Cut, Proxy, cuts_of};
use crate::scene::Scene;

/// The usual run makes one in this number of a call's cuts, and the last ones, at which the call commits
/// and answers; a long run makes all.
const TRIED: (u64, usize) = (8, 6);
/// The same behind a pooler: whether a call that lost its server answers truly is the same question at
/// each cut.
const TRIED_BEHIND_A_POOLER: (u64, usize) = (48, 2);
/// How often a call behind a pooler, whose deadline is short, may be too slow before it is cut.
const SLOW: usize = 5;
/// How many cases are cut at a time.
pub(crate) const SHARES: usize = 4;
/// After how many cuts it is asked to go on: whatever was not done is done again.
const GOES_ON: usize = 4;
/// The first job of each round.
pub(crate) const FIRST: JobId = JobId::new(1);
/// Between two rounds: time only goes on.
const ROUND: Duration = secs(10_000);

/// One schema, a store that reaches it through the proxy, and one that does not.
pub(crate) struct Ground {
    scene: Scene,
    pub(crate) proxy: Proxy,
    pub(crate) direct: PostgresStore,
    pub(crate) cut_off: PostgresStore,
    db: PgConnection,
    /// When the round began.
    pub(crate) base: Timestamp,
    rounds: usize,
    /// Whether the store's connection was cut and not made again.
    is_closed: bool,
    /// Stands between the store and the proxy: then it is the pooler that loses its server.
    pooler: Option<PgBouncer>,
    /// How often a connection was cut.
    cuts: usize,
}

impl Ground {
    pub(crate) async fn new(pooling: Option<Pooling>) -> Ground {
        let scene = Scene::new();
        let server = scene.plain_url().rsplit(':').next().unwrap().split('/').next().unwrap();
        // A pooler gives any call the connections that served hints.
        let spared =
            if pooling.is_some() { b"\0no client says so\0".as_slice() } else { b"quell hints" };
        let proxy = Proxy::start_sparing(server.parse().unwrap(), spared).await;
        let direct = PostgresStore::open(&scene.url).await.unwrap();
        let pooler = pooling.map(|pooling| PgBouncer::start_at(proxy.port(), pooling).unwrap());
        let cut_off = PostgresStore::open(&through(&proxy, &scene, pooler.as_ref())).await.unwrap();
        assert_eq!(cut_off.capabilities().push, pooling != Some(Pooling::Transaction));
        let db = scene.connect().await;
        let (base, rounds, cuts, is_closed) = (Rig::START, 0, 0, false);
        Ground { scene, proxy, direct, cut_off, db, base, rounds, is_closed, pooler, cuts }
    }

    /// Begins a round with the rows that the case needs.
    pub(crate) async fn begin(&mut self, case: &Case) {
        const EMPTY: &str = "delete from quell.job; delete from quell.ended;
             delete from quell.lease; delete from quell.attempt; delete from quell.hold; delete from quell.memory;
             delete from quell.start; delete from quell.inbox; delete from quell.tick_fired;
             delete from quell.schedule; delete from quell.past;
             delete from quell.effect; delete from quell.alert; delete from quell.idempotency;
             delete from quell.worker; delete from quell.unreadable;
             update quell.queue set settings = '{}', deleted = false
              where settings <> '{}' or deleted;
             update quell.task set settings = '{}' where settings <> '{}';
             select setval('quell.job_id', 1, false), setval('quell.schedule_id_seq', 1, false)";
        self.run(EMPTY).await;
        self.base = self.base + ROUND;
        (case.given)(&self.direct, self.base, FIRST).await.unwrap();
    }

    async fn run(&mut self, text: &str) {
        let text = text.replace("quell.", &format!("{}.", self.scene.schema()));
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut self.db).await.unwrap();
    }

    /// Every row that a call may change, with times counted from the round's beginning.
    async fn rows(&mut self) -> String {
        const TABLES: [&str; 18] = [
            "job",
            "ended",
            "lease",
            "attempt",
            "past",
            "effect",
            "alert",
            "idempotency",
            "hold",
            "memory",
            "start",
            "inbox",
            "tick_fired",
            "schedule",
            "queue",
            "task",
            "worker",
            "unreadable",
        ];
        let each = TABLES.map(|table| {
            let schema = self.scene.schema();
            format!("select '{table} ' || t::text as line from {schema}.{table} t")
        });
        let text = format!(
            "select coalesce(string_agg(line, E'\\n' order by line), '') from ({}) all_rows",
            each.join(" union all ")
        );
        let rows: String =
            sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(&mut self.db).await.unwrap();
        since(&rows, self.base)
    }

    /// Makes the call through the proxy. Where the server still ends a transaction that was cut off
    /// before, the call meets it and is made again.
    async fn call(&self, case: &Case) -> Result<()> {
        let deadline = Instant::now() + secs(20);
        loop {
            let answer = (case.call)(&self.cut_off, self.base, FIRST).await;
            let is_held = answer.as_ref().is_err_and(|e| e.kind() == ErrorKind::Contention);
            if !is_held || Instant::now() > deadline {
                return answer;
            }
        }
    }

    /// Lets the store have a connection on which nothing was prepared yet, or none.
    pub(crate) async fn connect(&mut self, case: &Case) {
        if self.pooler.is_some() {
            // Where a login is cut off, the pooler takes its time before it tries again.
            self.proxy.set(None);
            let goes_on = async || self.cut_off.counts().await.is_ok();
            return until("the pooler has a server again", goes_on).await;
        }
        if case.stranger {
            let url = through(&self.proxy, &self.scene, None);
            self.cut_off = PostgresStore::open(&url).await.unwrap();
        } else if !std::mem::take(&mut self.is_closed) {
            if case.cold {
                self.idle().await;
            }
            // Behind its begin: what is a single read would be made again on another connection.
            let closes = async || {
                self.proxy.set(Some(Cut::Before(40)));
                let answer = self.cut_off.attempts(FIRST).await;
                self.proxy.unset().1 && answer.is_err()
            };
            until("no connection is left", closes).await;
        }
        if !case.cold {
            self.idle().await;
        }
    }

    /// Lets the store have a connection that waits.
    async fn idle(&self) {
        self.proxy.set(None);
        self.cut_off.counts().await.unwrap();
    }

    /// A call that is cut nowhere: the rows before and after it, and the server's replies.
    pub(crate) async fn whole(&mut self, case: &Case) -> (String, String, Vec<u8>) {
        self.begin(case).await;
        self.connect(case).await;
        let before = self.rows().await;
        self.proxy.set(None);
        let answer = self.call(case).await;
        let (replies, _) = self.proxy.unset();
        answer.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        (before, self.rows().await, replies)
    }

    /// Makes the call, which is cut off; returns the outcome that its caller received. None where it was
    /// too slow for a pooler's deadline before anything was cut.
    async fn round(&mut self, case: &Case, cut: Cut, known: (&str, &str)) -> Option<Reported> {
        let (name, (before, after)) = (case.name, known);
        self.begin(case).await;
        self.connect(case).await;
        assert_eq!(self.rows().await, before, "{name}: each round begins alike");
        self.proxy.set(Some(cut));
        let answer = (case.call)(&self.cut_off, self.base, FIRST).await;
        let (_, was_cut) = self.proxy.unset();
        self.cuts += usize::from(was_cut);
        let rows = self.rows().await;
        let happened = rows == after;
        assert!(happened || rows == before, "{name}, {cut:?}: half done: {answer:?}\n{rows}");
        let reported = match answer.map_err(|error| error.kind()) {
            Ok(()) => Reported::Done,
            Err(ErrorKind::Unavailable) => Reported::Failed,
            Err(ErrorKind::UnknownOutcome) => Reported::Unknown,
            Err(other) => panic!("{name}, {cut:?}: {other:?}"),
        };
        if self.pooler.is_some() && !was_cut && reported != Reported::Done {
            return None;
        }
        assert!(was_cut || reported == Reported::Done, "{name}, {cut:?}: failed by itself");
        assert!(reported != Reported::Done || happened, "{name}, {cut:?}: said to be done");
        assert!(
            reported != Reported::Failed || !happened || before == after,
            "{name}, {cut:?}: was done"
        );
        self.is_closed = reported != Reported::Done && !self.rounds.is_multiple_of(GOES_ON);
        if !self.is_closed {
            self.goes_on(case, cut, (happened, after)).await;
        }
        self.rounds += 1;
        Some(reported)
    }

    /// The store is not opened again: it does what was not done, or at least reads.
    async fn goes_on(&mut self, case: &Case, cut: Cut, (happened, after): (bool, &str)) {
        if self.pooler.is_some() {
            // What was cut off may still hold its rows for a moment, behind the pooler.
            return until("it goes on", async || self.cut_off.counts().await.is_ok()).await;
        }
        if happened {
            // The connection may have been closed while it was idle: the next call finds out.
            let _found_out = self.cut_off.counts().await;
            self.cut_off.counts().await.unwrap();
            return;
        }
        // Numbers that were drawn in vain do not come back by themselves.
        self.run(
            "select setval('quell.job_id', ids, false), setval('quell.schedule_id_seq', 1, false)
               from (select coalesce(max(id), 0) + 1 as ids
                       from (select id from quell.job union all select id from quell.ended) j) jobs",
        )
        .await;
        let (before, deadline) = (self.rows().await, Instant::now() + secs(20));
        let rows = loop {
            let answer = self.call(case).await;
            assert!(answer.is_ok(), "{}, {cut:?}: afterwards {answer:?}", case.name);
            let rows = self.rows().await;
            // Some pass over what a transaction that was cut off still holds.
            if rows != before || rows == after || Instant::now() > deadline {
                break rows;
            }
        };
        assert_eq!(rows, after, "{}, {cut:?}: done again", case.name);
    }
}

fn through(proxy: &Proxy, scene: &Scene, pooler: Option<&PgBouncer>) -> String {
    let (head, tail) = scene.plain_url().rsplit_once(':').unwrap();
    let database = tail.split_once('/').unwrap().1;
    let (to, more) = match pooler {
        // What is left of a message may announce more than will ever come.
        Some(pooler) => (pooler.url(), "&timeout_ms=1000"),
        None => (format!("{head}:{}/{database}", proxy.port()), ""),
    };
    format!("{to}?sslmode=disable&connections=1{more}&schema={}", scene.schema())
}

/// Times are the only numbers of 16 digits; they are counted from `base`.
fn since(rows: &str, base: Timestamp) -> String {
    let mut reported = String::new();
    for word in rows.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
        match digits.parse::<i64>() {
            Ok(time) if digits.len() == 16 => {
                reported.push_str(&format!("t{}{}", time - base.as_micros(), &word[16..]));
            }
            _ => reported.push_str(word),
        }
    }
    reported
}

/// Cuts each of these cases; says how often, and what the outcomes were.
async fn cut_all(of_share: Vec<Case>) -> (usize, String) {
    let mut ground = Ground::new(None).await;
    let mut summary = String::new();
    for (number, case) in of_share.into_iter().enumerate() {
        // The first time, names get their numbers.
        ground.whole(&case).await;
        let (before, after, replies) = ground.whole(&case).await;
        let mut reported = BTreeMap::new();
        for cut in some_of(cuts_of(&replies), number, TRIED) {
            let answer = ground.round(&case, cut, (&before, &after)).await.unwrap();
            *reported.entry(answer).or_insert(0) += 1;
        }
        summary.push_str(&format!("{}: {} bytes, {reported:?}\n", case.name, replies.len()));
        case.judge(before != after, &reported);
    }
    (ground.rounds, summary)
}

#[test]
fn r01_r39_a_connection_cut_at_any_byte_of_the_replies_leaves_no_call_half_done() {
    let began = Instant::now();
    let mut shares: [Vec<Case>; SHARES] = Default::default();
    for (index, case) in table().into_iter().enumerate() {
        shares[index % SHARES].push(case);
    }
    // A thread for each, so that only what the call itself asks for comes between its bytes.
    let cutting = shares.map(|share| {
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(cut_all(share))
        })
    });
    let mut rounds = 0;
    for done in cutting {
        let (cuts, summary) = done.join().unwrap();
        rounds += cuts;
        eprint!("{summary}");
    }
    eprintln!("{rounds} cuts in {:?}", began.elapsed());
}

/// Cuts the connections of a pooler to its server at every message that comes through.
async fn cut_pooler(pooling: Pooling) {
    let mut ground = Ground::new(Some(pooling)).await;
    let mut reported = BTreeMap::new();
    // What a stranger does there, others do as well.
    for (number, case) in table().into_iter().filter(|case| !case.stranger).enumerate() {
        ground.whole(&case).await;
        let (before, after, replies) = ground.whole(&case).await;
        let changes = before != after;
        let whole = |cut: &Cut| matches!(cut, Cut::Before(_));
        let mut cuts: Vec<Cut> = cuts_of(&replies).into_iter().filter(whole).collect();
        // Behind the last message, no caller waits.
        cuts.pop();
        for cut in some_of(cuts, number, TRIED_BEHIND_A_POOLER) {
            let mut tries = 0..SLOW;
            let answer = loop {
                assert!(tries.next().is_some(), "{}, {cut:?}: failed by itself", case.name);
                if let Some(answer) = ground.round(&case, cut, (&before, &after)).await {
                    break answer;
                }
            };
            *reported.entry(answer).or_insert(0) += 1;
            assert!(
                changes || answer != Reported::Unknown,
                "{}, {cut:?}: it only reads",
                case.name
            );
        }
    }
    eprintln!("{pooling:?}: {} of {} rounds cut, {reported:?}", ground.cuts, ground.rounds);
    assert!(ground.cuts * 10 > ground.rounds * 8, "most of the cuts meet the call");
    assert!(
        reported.contains_key(&Reported::Failed) && reported.contains_key(&Reported::Unknown),
        "{reported:?}"
    );
}

#[tokio::test]
async fn r01_r39_a_session_pooler_that_loses_its_server_at_any_message_hides_no_commit() {
    cut_pooler(Pooling::Session).await;
}

#[tokio::test]
async fn r01_r39_a_transaction_pooler_that_loses_its_server_at_any_message_hides_no_commit() {
    cut_pooler(Pooling::Transaction).await;
}
