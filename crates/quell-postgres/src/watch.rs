//! Looks at the inbox where callers' transactions do not notify (R4, R34).
//!
//! A process with workers runs one statement each [`PAUSE`] then, however many workers and queues it has.
//! Where transactions do notify, it only looks now and then whether that is still so.
//!
//! Rows that were taken in stay in the inbox's index until they are vacuumed, and no vacuum removes what
//! a snapshot that stays open anywhere on the server may still see. So a look begins a little before the
//! newest id that had been given out two looks ago. A full look, now and then, finds a transaction that took
//! its id earlier and commits later; the longer full looks take, the fewer there are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_core::{Result, Timestamp, WakeHub};
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::debug;

use crate::PostgresStore;
use crate::connections::Connections;
use crate::hot::trail::RARELY;
use crate::row::get;
use crate::sql::Sql;
use crate::tx::{first, one_shot, read};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two looks whether transactions still notify. A change is notified, too.
const RECHECK: Duration = Duration::from_secs(10);
/// The same after one that failed.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);
/// The number of ids before the newest one where a look begins.
const MARGIN: i64 = 200;
/// Between two full looks at the shortest.
const FULL: Duration = Duration::from_secs(1);
/// The same at the longest, where one takes half a second: see [`RARELY`].
const LONGEST: Duration = Duration::from_secs(10);
/// Between two wake-ups for the same row, which another call may be taking in.
const AGAIN: Duration = Duration::from_millis(250);

/// The newest row that waits after `$1`. Where transactions notify, too: one that wrote its row while
/// they did not may commit later.
const LOOK: &str = "
    select m.notifies,
           (select s.last_value from quell.inbox_id_seq s),
           (select i.id from quell.inbox i
             where i.refused is null and i.id > $1
             order by i.id desc limit 1)
      from quell.meta m";

/// Makes the watch look at once.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    look: Notify,
}

impl Watch {
    /// There is someone to wake, or whether transactions notify may have changed.
    pub(crate) fn look(&self) {
        self.look.notify_one();
    }
}

/// What a look showed.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Whether transactions notify.
    notifies: bool,
    /// The newest id that was given out.
    given: i64,
    /// The newest row that waits.
    waits: Option<i64>,
}

/// Where the looks are.
#[derive(Debug)]
struct Place {
    /// The newest ids that had been given out at the last two looks, the newer one last. What was given
    /// out at a look may be later than what it saw of the inbox.
    given: [i64; 2],
    full_at: Instant,
    /// The row for which workers were woken last, and when they are woken for it again.
    woken: Option<(i64, Instant)>,
}

/// The lowest id that a look reads after; a full look has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Head,
    After(i64),
}

impl Place {
    fn new(now: Instant) -> Self {
        Place { given: [0; 2], full_at: now, woken: None }
    }

    fn next(&self, now: Instant) -> From {
        let after = self.given[0].saturating_sub(MARGIN);
        if now >= self.full_at || after <= 0 { From::Head } else { From::After(after) }
    }

    /// Puts the next full look off, where this was one, whatever came of it.
    fn ended(&mut self, from: From, began: Instant, now: Instant) {
        if from == From::Head {
            let took = now.saturating_duration_since(began);
            self.full_at = now + took.saturating_mul(RARELY).clamp(FULL, LONGEST);
        }
    }

    /// Takes note of a look that began at `began`; says whether to wake workers.
    fn note(&mut self, from: From, seen: Seen, began: Instant, now: Instant) -> bool {
        self.given = [self.given[1], seen.given];
        self.ended(from, began, now);
        let Some(row) = seen.waits else {
            self.woken = None;
            return false;
        };
        let wakes = self.woken.is_none_or(|(last, again)| last != row || now >= again);
        if wakes {
            self.woken = Some((row, now + AGAIN));
        }
        wakes
    }
}

impl PostgresStore {
    /// Sets for the whole store whether callers' transactions notify at their commit (R34), as they do by
    /// default. PostgreSQL lets commits that notify through one by one, on the whole server. Where
    /// they do not notify, workers look for their triggers every 50 ms.
    ///
    /// `select quell.notify_in_transactions(false)` does the same in SQL.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`](quell_core::ErrorKind::ReadOnly) for a role without the rights of a
    /// worker; else what the database says.
    pub async fn notify_in_transactions(&self, enabled: bool) -> Result<()> {
        let by = self.backend();
        let query = by.sql.query("select quell.notify_in_transactions($1)").bind(enabled);
        one_shot(&by.pool, &by.sql, query).await.map(drop)
    }
}

/// Looks, and wakes the workers of this process, until the task that runs it is dropped.
pub(crate) async fn keep_watch(
    pool: Connections,
    sql: Arc<Sql>,
    hub: Arc<WakeHub>,
    watch: Arc<Watch>,
) {
    let mut place = Place::new(Instant::now());
    loop {
        if !hub.has_subscribers() {
            watch.look.notified().await;
            continue;
        }
        let began = Instant::now();
        let from = place.next(began);
        let pause = match look(&pool, &sql, from).await {
            Ok(seen) => {
                if place.note(from, seen, began, Instant::now()) {
                    hub.wake(None, Timestamp::MIN);
                }
                if seen.notifies { RECHECK } else { PAUSE }
            }
            Err(error) => {
                place.ended(from, began, Instant::now());
                debug!(%error, "cannot look at the inbox, polling finds the work");
                PAUSE_AFTER_ERROR
            }
        };
        // Either way it looks.
        let _told = timeout(pause, watch.look.notified()).await;
    }
}

async fn look(pool: &Connections, sql: &Sql, from: From) -> Result<Seen> {
    let after = match from {
        From::Head => 0,
        From::After(id) => id,
    };
    let rows = read(pool, sql, "look at the inbox", sql.query(LOOK).bind(after)).await?;
    let row = first(&rows)?;
    Ok(Seen { notifies: get(row, 0)?, given: get(row, 1)?, waits: get(row, 2)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(given: i64, waits: Option<i64>) -> Seen {
        Seen { notifies: false, given, waits }
    }

    #[test]
    fn r34_a_look_begins_before_what_was_given_out_two_looks_ago() {
        let now = Instant::now();
        let mut place = Place::new(now);
        for (given, next) in [
            (MARGIN, From::Head),
            (5_000, From::Head),
            (9_000, From::After(5_000 - MARGIN)),
            (9_000, From::After(9_000 - MARGIN)),
        ] {
            place.note(place.next(now), seen(given, None), now, now);
            place.full_at = now + FULL;
            assert_eq!(place.next(now), next, "{given}");
        }
    }

    #[test]
    fn r34_full_looks_take_a_twentieth_of_the_time() {
        let began = Instant::now();
        let mut place = Place::new(began);
        place.given = [9_000; 2];
        for (took, pause) in [(1, 1_000), (250, 5_000), (9_000, 10_000)] {
            let now = began + Duration::from_millis(took);
            place.note(From::Head, seen(9_000, None), began, now);
            let full_at = now + Duration::from_millis(pause);
            assert_ne!(place.next(full_at - Duration::from_millis(1)), From::Head);
            assert_eq!(place.next(full_at), From::Head);
        }
    }

    #[test]
    fn r34_workers_are_woken_for_each_new_row_and_again_for_one_that_stays() {
        let begin = Instant::now();
        let mut place = Place::new(begin);
        let mut wakes = |ms, waits| {
            let now = begin + Duration::from_millis(ms);
            place.note(From::Head, seen(9, waits), now, now)
        };
        assert!(!wakes(0, None));
        assert!(wakes(50, Some(7)));
        assert!(!wakes(100, Some(7)));
        assert!(wakes(150, Some(8)));
        assert!(!wakes(200, Some(8)));
        assert!(wakes(400, Some(8)), "another call may have died");
        assert!(!wakes(450, None));
        assert!(wakes(500, Some(8)), "it was committed late");
    }
}
