//! Outputs of handlers that settle in their own transaction (R19, R22).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell::history::{Event, History};
use quell::store::Store;
use quell::trigger::SettlingDatabase;
use quell::{Ctx, ErrorKind, JobResult, JobState, Payload, Quell, Result, Task, TaskError};
use serde::{Deserialize, Serialize};
use sqlx::Pool;

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Event>>);

impl History for Recorder {
    fn record(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl Recorder {
    /// The attempts that asked their own transactions to end them, which were handed to the handler.
    fn asked(&self) -> usize {
        let (mut running, mut asked) = (Vec::new(), 0);
        for event in self.0.lock().unwrap().iter() {
            match event {
                Event::Start { job, token, .. } => running.push((*job, *token)),
                Event::SettleIn { job, token } => {
                    assert!(running.contains(&(*job, *token)), "{event:?} of {running:?}");
                    asked += 1;
                }
                _ => {}
            }
        }
        asked
    }
}

/// How the handler settles.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Book {
    With,
    Without,
    TooLarge,
}

impl Task for Book {
    const NAME: &'static str = "book";
    type Output = String;
}

async fn book<DB: SettlingDatabase>(
    task: Book,
    ctx: Ctx<Pool<DB>>,
) -> std::result::Result<String, TaskError> {
    let mut tx = ctx.state().begin().await?;
    match task {
        Book::With => ctx.settle_in_with(&mut tx, "committed").await?,
        Book::Without => ctx.settle_in(&mut tx).await?,
        Book::TooLarge => {
            let most = "x".repeat(JobResult::MAX_OUTPUT_BYTES);
            let refused = ctx.settle_in_with(&mut tx, &most).await.unwrap_err();
            assert_eq!((refused.kind(), refused.field()), (ErrorKind::Invalid, Some("output")));
        }
    }
    tx.commit().await?;
    Ok("returned".to_owned())
}

async fn the_committed_output_is_kept<DB: SettlingDatabase>(
    store: Arc<dyn Store>,
    pool: Pool<DB>,
) -> Result<()> {
    let recorder = Arc::new(Recorder::default());
    let sink = Arc::<Recorder>::clone(&recorder);
    let quell = Quell::with_store(store).history(sink).build()?;
    let worker = quell.worker(pool).register(book::<DB>);
    let asked = async {
        let table = [
            (Book::With, Some("\"committed\"")),
            (Book::Without, None),
            // Nothing was settled, so the worker does.
            (Book::TooLarge, Some("\"returned\"")),
        ];
        for (task, output) in table {
            let job = quell.trigger(task).await.unwrap().job().unwrap();
            let result = quell.result(job, Duration::from_secs(20)).await.unwrap();
            let kept = result.output.as_ref().map(Payload::as_str);
            assert_eq!((result.state, kept), (JobState::Succeeded, output), "{result:?}");
        }
    };
    worker.run_until(asked).await?;
    // R22: the history has what a lost answer to the commit would leave open.
    assert_eq!(recorder.asked(), 2, "the output that was too large asked for nothing");
    Ok(())
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn r19_r22_an_output_is_committed_with_the_end_on_sqlite() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("app.db").display());
    let store = quell::sqlite::SqliteStore::open(&url).await?;
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    the_committed_output_is_kept(Arc::new(store), pool).await
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn r19_r22_an_output_is_committed_with_the_end_on_postgres() -> Result<()> {
    let url = quell_services::url_for_tests();
    let store = quell::postgres::PostgresStore::open(&url).await?;
    let pool = sqlx::PgPool::connect(url.split('?').next().unwrap()).await.unwrap();
    the_committed_output_is_kept(Arc::new(store), pool).await
}
