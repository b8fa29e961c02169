//! Ends that another process brings about are pushed to those who wait for a result (R19).
//!
//! Who waits has a clock that stands still, so that no poll ever finds the end.

use std::sync::Arc;

use quell::store::Store;
use quell::testing::TestClock;
use quell::{JobId, JobResult, JobState, Quell, Result};
use quell_conformance::rig::{fails, keyed, lease, plain, secs, until};
use quell_conformance::{Opened, Rig};

/// Two stores on the same rows, as two processes have them.
struct Processes {
    /// Where someone waits.
    quell: Quell,
    clock: Arc<TestClock>,
    /// Where jobs end.
    rig: Rig,
    ear: Ear,
}

/// Finds out whether the other process knows who waits.
enum Ear {
    /// It looks for itself.
    #[cfg(feature = "sqlite")]
    None,
    #[cfg(feature = "postgres")]
    Hints(hints::Ear),
}

impl Processes {
    fn new(stores: [Arc<dyn Store>; 2], guard: Box<dyn std::any::Any + Send>, ear: Ear) -> Self {
        let [waits, ends] = stores;
        let clock = Arc::new(TestClock::new(Rig::START));
        let quell = Quell::with_store(waits).clock(Arc::clone(&clock) as _).build().unwrap();
        Processes { quell, clock, rig: Rig::new(Opened { store: ends, guard }), ear }
    }

    /// Waits until someone waits for the end of `job`, and the other process knows.
    async fn awaited(&mut self, job: JobId) {
        let clock = &self.clock;
        let what = format!("someone waits for job {job}");
        until(&what, || async { clock.next_sleeper().is_some() }).await;
        match &mut self.ear {
            #[cfg(feature = "sqlite")]
            Ear::None => {}
            #[cfg(feature = "postgres")]
            Ear::Hints(ear) => ear.received(job, self.rig.store.wakeups()).await,
        }
    }

    /// The result of a job that `end` ends elsewhere.
    async fn result_of(&mut self, job: JobId, end: impl AsyncFnOnce(&mut Self)) -> JobResult {
        let quell = self.quell.clone();
        let notified = async {
            let (result, ()) = tokio::join!(quell.result(job, secs(60)), end(self));
            result.unwrap()
        };
        tokio::time::timeout(secs(20), notified)
            .await
            .unwrap_or_else(|_| panic!("the end was not pushed"))
    }
}

async fn every_end_is_pushed(mut processes: Processes) {
    let job = processes.rig.trigger(plain("1")).await.job().unwrap();
    let result = processes.result_of(job, async |processes| {
        processes.awaited(job).await;
        let run = processes.rig.claim_one().await;
        processes.rig.succeed(&run).await;
    });
    assert_eq!(result.await.state, JobState::Succeeded);
    let job = processes.rig.trigger(plain("2")).await.job().unwrap();
    let result = processes.result_of(job, async |processes| {
        processes.awaited(job).await;
        let run = processes.rig.claim_one().await;
        processes.rig.settle(lease(&run), fails(secs(1), true)).await;
    });
    assert_eq!(result.await.state, JobState::Dead);
    let job = processes.rig.trigger(keyed("a")).await.job().unwrap();
    let result = processes.result_of(job, async |processes| {
        processes.awaited(job).await;
        processes.rig.cancel(job).await.unwrap();
    });
    assert_eq!(result.await.state, JobState::Cancelled);
}

/// The end of the window that absorbed the job is the answer (R12).
async fn the_successors_end_is_pushed(mut processes: Processes) {
    let first = processes.rig.trigger(keyed("a")).await.job().unwrap();
    let failed = processes.rig.at(10).claim_one().await;
    let successor = processes.rig.at(12).trigger(keyed("a")).await.job().unwrap();
    let result = processes.result_of(first, async |processes| {
        processes.awaited(first).await;
        processes.rig.fail(&failed, secs(1)).await;
        processes.awaited(successor).await;
        let run = processes.rig.at(22).claim_one().await;
        processes.rig.succeed(&run).await;
    });
    let result = result.await;
    assert_eq!((result.job, result.state), (successor, JobState::Succeeded));
}

/// The tests, with the processes that this function makes.
macro_rules! tests {
    ($processes:ident) => {
        #[tokio::test]
        async fn r19_an_end_in_another_process_is_pushed() -> Result<()> {
            every_end_is_pushed($processes().await?).await;
            Ok(())
        }

        #[tokio::test]
        async fn r12_r19_the_successors_end_in_another_process_is_pushed() -> Result<()> {
            the_successors_end_is_pushed($processes().await?).await;
            Ok(())
        }
    };
}

#[cfg(feature = "sqlite")]
mod on_sqlite {
    use super::*;

    async fn processes() -> Result<Processes> {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("app.db").display());
        let open = async || quell::sqlite::SqliteStore::open(&url).await.map(Arc::new);
        let (waits, ends) = (open().await?, open().await?);
        Ok(Processes::new([waits, ends], Box::new(folder), Ear::None))
    }

    tests!(processes);
}

#[cfg(feature = "postgres")]
mod on_postgres {
    use super::*;

    async fn processes() -> Result<Processes> {
        let url = quell_services::url_for_tests();
        let open = async || quell::postgres::PostgresStore::open(&url).await.map(Arc::new);
        let (waits, ends) = (open().await?, open().await?);
        let ear = Ear::Hints(hints::Ear::new(&url).await);
        Ok(Processes::new([waits, ends], Box::new(()), ear))
    }

    tests!(processes);
}

/// Listens to the notifications between processes.
#[cfg(feature = "postgres")]
mod hints {
    use futures_util::StreamExt;
    use quell::JobId;
    use quell::store::Wakeups;
    use quell_conformance::rig::secs;
    use sqlx::postgres::{PgListener, PgPool};

    pub(super) struct Ear {
        pool: PgPool,
        channel: String,
        listener: PgListener,
    }

    impl Ear {
        pub(super) async fn new(url: &str) -> Self {
            let (plain, schema) = (url.split('?').next().unwrap(), url.rsplit_once('=').unwrap().1);
            let pool = PgPool::connect(plain).await.unwrap();
            let channel = "select substring(prosrc from 'quell_[0-9a-f]{16}') from pg_proc
                 where pronamespace = $1::regnamespace and prosrc like '%pg_notify%' limit 1";
            let channel = sqlx::query_scalar(channel).bind(schema).fetch_one(&pool).await;
            let channel: String = channel.unwrap();
            let mut listener = PgListener::connect(plain).await.unwrap();
            listener.listen(&channel).await.unwrap();
            Ear { pool, channel, listener }
        }

        /// Waits for the notification that a process waits for `job`, and until the subscriber of
        /// `others` has received it too: all subscribers receive notifications in one order.
        pub(super) async fn received(&mut self, job: JobId, mut others: Wakeups) {
            let name = job.to_string();
            let notified = async {
                loop {
                    let hint = self.listener.recv().await.unwrap();
                    let mut words = hint.payload().split(' ');
                    if words.next() == Some("wait") && words.skip(1).any(|word| word == name) {
                        return;
                    }
                }
            };
            tokio::time::timeout(secs(20), notified)
                .await
                .unwrap_or_else(|_| panic!("no notification of a waiting process"));
            let after = format!("after-{job}");
            let notify = sqlx::query("select pg_notify($1, '0 0 ' || $2)");
            let notified = notify.bind(&self.channel).bind(&after).execute(&self.pool);
            notified.await.unwrap();
            let received = async {
                while let Some(hint) = others.next().await {
                    if hint.queue.is_some_and(|queue| queue.as_str() == after) {
                        return;
                    }
                }
            };
            tokio::time::timeout(secs(20), received)
                .await
                .unwrap_or_else(|_| panic!("wake-ups are not received"));
        }
    }
}
