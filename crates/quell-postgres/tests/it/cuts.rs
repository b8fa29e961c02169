//! A connection that breaks at any byte of the server's replies, in every call of the store.
//!
//! Each call is made on the same rows again and again, and cut off at another place each time. It
//! must have happened as a whole or not at all, its error must say which of the two where it can
//! (R1), and the store must go on without being opened again (R39).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quell_conformance::Rig;
use quell_conformance::calls::{Case, table};
use quell_conformance::rig::{secs, until};
use quell_core::{ErrorKind, JobId, Result, Store, Timestamp};
use quell_postgres::PostgresStore;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::proxy::{Cut, Proxy, cuts_of};
use crate::scene::Scene;

/// How many cases are cut at a time.
const SHARES: usize = 4;
/// After how many cuts it is asked to go on: whatever was not done is done again.
const GOES_ON: usize = 4;
/// The first job of each round.
const FIRST: JobId = JobId::new(1);
/// Between two rounds: time only goes on.
const ROUND: Duration = secs(10_000);

/// One schema, a store that reaches it through the proxy, and one that does not.
struct Ground {
    scene: Scene,
    proxy: Proxy,
    direct: PostgresStore,
    cut_off: PostgresStore,
    db: PgConnection,
    /// When the round began.
    base: Timestamp,
    rounds: usize,
    /// Whether the store's connection was cut and not made again.
    is_closed: bool,
}

impl Ground {
    async fn new() -> Ground {
        let scene = Scene::new();
        let server = scene.plain_url().rsplit(':').next().unwrap().split('/').next().unwrap();
        let proxy = Proxy::start(server.parse().unwrap()).await;
        let direct = PostgresStore::open(&scene.url).await.unwrap();
        let cut_off = PostgresStore::open(&through(&proxy, &scene)).await.unwrap();
        let db = scene.connect().await;
        Ground { scene, proxy, direct, cut_off, db, base: Rig::START, rounds: 0, is_closed: false }
    }

    /// Begins a round with the rows that the case needs.
    async fn begin(&mut self, case: &Case) {
        const EMPTY: &str = "delete from quell.job; delete from quell.ended;
             delete from quell.attempt; delete from quell.hold; delete from quell.memory;
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
        const TABLES: [&str; 17] = [
            "job",
            "ended",
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
    async fn connect(&mut self, case: &Case) {
        if case.stranger {
            self.cut_off = PostgresStore::open(&through(&self.proxy, &self.scene)).await.unwrap();
        } else if !std::mem::take(&mut self.is_closed) {
            if case.cold {
                self.idle().await;
            }
            // One that idled is tested first: then the test is cut off, and the call has a new one.
            let closes = async || {
                self.proxy.set(Some(Cut::Before(0)));
                let answer = self.cut_off.counts().await;
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
    async fn whole(&mut self, case: &Case) -> (String, String, Vec<u8>) {
        self.begin(case).await;
        self.connect(case).await;
        let before = self.rows().await;
        self.proxy.set(None);
        let answer = self.call(case).await;
        let (replies, _) = self.proxy.unset();
        answer.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        (before, self.rows().await, replies)
    }

    /// The call, cut off; says what its caller was told.
    async fn round(&mut self, case: &Case, cut: Cut, known: (&str, &str)) -> Told {
        let (name, (before, after)) = (case.name, known);
        self.begin(case).await;
        self.connect(case).await;
        assert_eq!(self.rows().await, before, "{name}: each round begins alike");
        self.proxy.set(Some(cut));
        let answer = (case.call)(&self.cut_off, self.base, FIRST).await;
        let (_, was_cut) = self.proxy.unset();
        let rows = self.rows().await;
        let happened = rows == after;
        assert!(happened || rows == before, "{name}, {cut:?}: half done: {answer:?}\n{rows}");
        let told = match answer.map_err(|error| error.kind()) {
            Ok(()) => Told::Done,
            Err(ErrorKind::Unavailable) => Told::Failed,
            Err(ErrorKind::UnknownOutcome) => Told::Unknown,
            Err(other) => panic!("{name}, {cut:?}: {other:?}"),
        };
        assert!(was_cut || told == Told::Done, "{name}, {cut:?}: failed by itself");
        assert!(told != Told::Done || happened, "{name}, {cut:?}: said to be done");
        assert!(told != Told::Failed || !happened || before == after, "{name}, {cut:?}: was done");
        self.is_closed = told != Told::Done && !self.rounds.is_multiple_of(GOES_ON);
        if !self.is_closed {
            self.goes_on(case, cut, (happened, after)).await;
        }
        self.rounds += 1;
        told
    }

    /// The store is not opened again: it does what was not done, or at least reads.
    async fn goes_on(&mut self, case: &Case, cut: Cut, (happened, after): (bool, &str)) {
        if happened {
            // The connection may have been closed while nobody used it: the next call finds out.
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
        let answer = self.call(case).await;
        assert!(answer.is_ok(), "{}, {cut:?}: afterwards {answer:?}", case.name);
        assert_eq!(self.rows().await, after, "{}, {cut:?}: done again", case.name);
    }
}

/// What a caller learned of a call that was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Done,
    Failed,
    Unknown,
}

fn through(proxy: &Proxy, scene: &Scene) -> String {
    let (head, tail) = scene.plain_url().rsplit_once(':').unwrap();
    let database = tail.split_once('/').unwrap().1;
    let schema = scene.schema();
    format!("{head}:{}/{database}?sslmode=disable&connections=1&schema={schema}", proxy.port())
}

/// Times are the only numbers of so many digits; they are counted from `base`.
fn since(rows: &str, base: Timestamp) -> String {
    let mut told = String::new();
    for word in rows.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
        match digits.parse::<i64>() {
            Ok(time) if digits.len() == 16 => {
                told.push_str(&format!("t{}{}", time - base.as_micros(), &word[16..]));
            }
            _ => told.push_str(word),
        }
    }
    told
}

/// Cuts each of these cases everywhere; says how often, and what became of it.
async fn cut_all(cases: Vec<Case>) -> (usize, String) {
    let mut ground = Ground::new().await;
    let mut summary = String::new();
    for case in cases {
        // The first time, names get their numbers.
        ground.whole(&case).await;
        let (before, after, replies) = ground.whole(&case).await;
        let mut told = BTreeMap::new();
        let cuts = cuts_of(&replies);
        for cut in &cuts {
            *told.entry(ground.round(&case, *cut, (&before, &after)).await).or_insert(0) += 1;
        }
        summary.push_str(&format!("{}: {} bytes, {told:?}\n", case.name, replies.len()));
        let changes = before != after;
        assert_eq!(changes, case.writes, "{}: it is to change rows, or not to", case.name);
        // Only what may have happened is unknown.
        assert_eq!(told.contains_key(&Told::Unknown), changes, "{}: {told:?}", case.name);
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
