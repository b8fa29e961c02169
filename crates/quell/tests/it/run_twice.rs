//! The chapter "Run twice, act once": its code, and what it says of each step.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell::testing::TestKit;
use quell::{
    Ctx, ErrorKind, Jitter, JobState, Key, Once, Policy, Quell, Receipt, Result, Task, TaskError,
};
use serde::{Deserialize, Serialize};

/// Charges what an invoice says.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Charge {
    invoice: u64,
    cents: u64,
}

/// The bank's number of the charge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Charged(u32);

impl Task for Charge {
    const NAME: &'static str = "invoice.charge";
    type Output = Charged;

    fn policy() -> Policy {
        Policy::queue("billing")
            .attempts(8)
            .min_backoff(Duration::from_secs(1))
            .jitter(Jitter::None)
    }
}

async fn charge_naively(task: Charge, ctx: Ctx<Shop>) -> Result<Charged, TaskError> {
    let shop = ctx.state();
    let charged = shop.bank.charge(task.cents, None).await.map_err(class)?;
    shop.mail.send(task.invoice, &charged).await?;
    Ok(charged)
}

async fn charge(task: Charge, ctx: Ctx<Shop>) -> Result<Charged, TaskError> {
    let shop = ctx.state();
    let charged = ctx
        .effect("charge")
        .verify(|key| async move { shop.bank.find(&key).await.map_err(class) })
        .run(|key| async move { shop.bank.charge(task.cents, Some(key)).await.map_err(class) })
        .await?;
    let sent = ctx.once("mail").run(|| shop.mail.send(task.invoice, &charged)).await?;
    if sent == Once::Unclear {
        shop.mail.look_into(task.invoice);
    }
    Ok(charged)
}

/// What another try can do about what the bank says.
fn class(refusal: Refusal) -> TaskError {
    match refusal {
        Refusal::Declined => TaskError::permanent(refusal),
        Refusal::Busy { retry_after } => TaskError::retry_after(retry_after, refusal),
        Refusal::LineBroke => TaskError::retry(refusal),
    }
}

async fn bill(quell: &Quell, invoice: u64, cents: u64) -> Result<Receipt> {
    let key = format!("invoice-{invoice}");
    quell.trigger(Charge { invoice, cents }).idempotency_key(key).await
}

async fn wait_for_charge(quell: &Quell, receipt: &Receipt) -> Result<Option<Charged>> {
    let Some(job) = receipt.job() else { return Ok(None) };
    let result = quell.result(job, Duration::from_secs(10)).await?;
    result.output.map(|output| output.decode()).transpose()
}

/// What the handlers share.
#[derive(Clone, Debug, Default)]
struct Shop {
    bank: Arc<Bank>,
    mail: Arc<Mail>,
}

/// Why the bank does not say yes.
#[derive(Clone, Debug)]
enum Refusal {
    Declined,
    Busy { retry_after: Duration },
    LineBroke,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refusal::Declined => "the card was declined",
            Refusal::Busy { .. } => "the bank is busy",
            Refusal::LineBroke => "the line broke: the charge may have been made",
        })
    }
}

impl std::error::Error for Refusal {}

/// A bank that knows keys, as real ones do.
#[derive(Debug, Default)]
struct Bank(Mutex<Ledger>);

#[derive(Debug, Default)]
struct Ledger {
    charges: u32,
    by_key: BTreeMap<Key, Charged>,
    /// What it says next instead of yes.
    moods: Vec<Refusal>,
}

#[expect(clippy::unused_async, reason = "a bank answers over a network")]
impl Bank {
    async fn charge(&self, cents: u64, key: Option<Key>) -> Result<Charged, Refusal> {
        assert!(cents > 0, "nothing to charge");
        let mut ledger = self.0.lock().unwrap();
        let mood = ledger.moods.pop();
        if let Some(mood @ (Refusal::Declined | Refusal::Busy { .. })) = mood {
            return Err(mood);
        }
        let known = key.as_ref().and_then(|key| ledger.by_key.get(key).cloned());
        let charged = known.unwrap_or_else(|| {
            ledger.charges += 1;
            Charged(ledger.charges)
        });
        if let Some(key) = key {
            ledger.by_key.insert(key, charged.clone());
        }
        mood.map_or(Ok(charged), Err)
    }

    async fn find(&self, key: &Key) -> Result<Option<Charged>, Refusal> {
        Ok(self.0.lock().unwrap().by_key.get(key).cloned())
    }

    fn charges(&self) -> u32 {
        self.0.lock().unwrap().charges
    }
}

/// A mail server that knows no keys.
#[derive(Debug, Default)]
struct Mail(Mutex<Post>);

#[derive(Debug, Default)]
struct Post {
    sent: u32,
    unclear: Vec<u64>,
    /// How many more mails it accepts and then says nothing of.
    silent: u32,
}

#[expect(clippy::unused_async, reason = "a mail server answers over a network")]
impl Mail {
    async fn send(&self, invoice: u64, charged: &Charged) -> Result<(), TaskError> {
        let mut post = self.0.lock().unwrap();
        post.sent += 1;
        if post.silent > 0 {
            post.silent -= 1;
            let said = format!("no answer to the mail of invoice {invoice}, {charged:?}");
            return Err(TaskError::retry(said));
        }
        Ok(())
    }

    fn look_into(&self, invoice: u64) {
        self.0.lock().unwrap().unclear.push(invoice);
    }
}

/// A shop whose bank and mail behave so, and its one worker.
fn shop(moods: &[Refusal], silent: u32) -> (Shop, Shop) {
    let shop = Shop::default();
    shop.bank.0.lock().unwrap().moods = moods.iter().rev().cloned().collect();
    shop.mail.0.lock().unwrap().silent = silent;
    (shop.clone(), shop)
}

#[tokio::test]
async fn the_naive_handler_charges_as_often_as_it_runs() -> Result<()> {
    let (state, shop) = shop(&[], 2);
    let kit = TestKit::start(|quell| quell.worker(state).register(charge_naively))?;
    let task = Charge { invoice: 7, cents: 900 };
    kit.quell().trigger(task.clone()).await?;
    // The caller received no answer, and retries.
    kit.quell().trigger(task).await?;
    kit.advance(Duration::from_secs(60)).await;
    assert_eq!(shop.bank.charges(), 4);
    Ok(())
}

#[tokio::test]
async fn r19_r23_the_last_handler_charges_once_whatever_breaks() -> Result<()> {
    let busy = Refusal::Busy { retry_after: Duration::from_secs(30) };
    let table: [(&[Refusal], u32); 5] = [
        (&[], 0),
        (&[], 3),
        (&[Refusal::LineBroke], 0),
        (&[busy.clone(), busy, Refusal::LineBroke], 1),
        (&[Refusal::LineBroke, Refusal::LineBroke], 1),
    ];
    for (moods, silent) in table {
        let (state, shop) = shop(moods, silent);
        let kit = TestKit::start(|quell| quell.worker(state).register(charge))?;
        let receipt = bill(kit.quell(), 7, 900).await?;
        let again = bill(kit.quell(), 7, 900).await?;
        assert_eq!(again.job(), receipt.job(), "one job for both calls");
        kit.advance(Duration::from_secs(300)).await;
        assert_eq!(shop.bank.charges(), 1, "{moods:?}, {silent}");
        assert_eq!(shop.mail.0.lock().unwrap().sent, 1, "{moods:?}, {silent}");
        let unclear = if silent > 0 { vec![7] } else { vec![] };
        assert_eq!(shop.mail.0.lock().unwrap().unclear, unclear);
        assert_eq!(wait_for_charge(kit.quell(), &receipt).await?, Some(Charged(1)));
        let after = bill(kit.quell(), 7, 900).await?;
        assert!(matches!(after, Receipt::Existing { state: JobState::Succeeded, .. }), "{after:?}");
        let other = bill(kit.quell(), 7, 901).await.unwrap_err();
        assert_eq!(other.kind(), ErrorKind::IdempotencyConflict);
    }
    Ok(())
}

#[tokio::test]
async fn r24_r25_what_the_bank_says_decides_what_comes_next() -> Result<()> {
    let (state, shop) = shop(&[Refusal::Declined], 0);
    let kit = TestKit::start(|quell| quell.worker(state).register(charge))?;
    bill(kit.quell(), 7, 900).await?;
    kit.advance(Duration::from_secs(1)).await;
    let dead = kit.jobs("invoice.charge", JobState::Dead).await?;
    assert_eq!((dead.len(), dead[0].attempt, shop.bank.charges()), (1, 1, 0));
    Ok(())
}

#[cfg(feature = "sqlite")]
mod books {
    use super::*;
    use sqlx::SqlitePool;

    /// Enters an invoice into the books.
    #[derive(Debug, Serialize, Deserialize)]
    struct Book {
        invoice: i64,
        cents: i64,
    }

    impl Task for Book {
        const NAME: &'static str = "invoice.book";
        type Output = ();
    }

    async fn book(task: Book, ctx: Ctx<SqlitePool>) -> Result<(), TaskError> {
        let mut tx = ctx.state().begin_with("begin immediate").await?;
        sqlx::query("insert into ledger (invoice, cents) values ($1, $2)")
            .bind(task.invoice)
            .bind(task.cents)
            .execute(&mut *tx)
            .await?;
        ctx.settle_in(&mut tx).await?;
        tx.commit().await?;
        Ok(())
    }

    #[tokio::test]
    async fn r22_the_books_and_the_end_of_the_job_are_one_commit() -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("shop.db").display());
        let quell = Quell::open(&url).await?;
        let db = SqlitePool::connect(&url).await.unwrap();
        sqlx::query("create table ledger (invoice integer, cents integer)")
            .execute(&db)
            .await
            .unwrap();
        let receipt = quell.trigger(Book { invoice: 7, cents: 900 }).await?;
        let worker = quell.worker(db.clone()).register(book);
        let mut workers = tokio::task::JoinSet::new();
        workers.spawn(worker.run_until(std::future::pending()));
        let result = quell.result(receipt.job().unwrap(), Duration::from_secs(20)).await?;
        assert_eq!(result.state, JobState::Succeeded);
        let rows: i64 =
            sqlx::query_scalar("select count(*) from ledger").fetch_one(&db).await.unwrap();
        assert_eq!(rows, 1);
        Ok(())
    }
}

#[test]
fn the_chapter_shows_this_code() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/run-twice.md")).unwrap();
    let source = std::fs::read_to_string(root.join("tests/it/run_twice.rs")).unwrap();
    // What stands in a module is indented here, and not there.
    let source = source.replace("\n    ", "\n") + &source;
    let blocks: Vec<&str> = page.split("```rust\n").skip(1).collect();
    assert!(blocks.len() >= 6, "the page has {} blocks", blocks.len());
    for block in blocks {
        let code = block.split("```").next().unwrap();
        assert!(source.contains(code), "not in the test:\n{code}");
    }
}
