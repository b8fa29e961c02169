//! A task that keeps a search index up to date, and nothing else: `tests/search.rs` tests it.
//!
//! The handler gets the index behind a trait, so tests replace it. Its errors say which failures a
//! retry may fix.

use std::time::Duration;

use quell::{Ctx, Jitter, Policy, Task, TaskError};
use serde::{Deserialize, Serialize};

/// Puts a page's current text into the search index: once per burst of edits.
#[derive(Debug, Serialize, Deserialize)]
pub struct IndexPage {
    /// The page that changed.
    pub page: String,
}

impl Task for IndexPage {
    const NAME: &'static str = "page.index";
    type Output = ();

    fn policy() -> Policy {
        let (min, max) = (Duration::from_secs(10), Duration::from_secs(60));
        Policy::queue("search")
            .debounce(min..=max)
            .attempts(3)
            .min_backoff(Duration::from_secs(30))
            .jitter(Jitter::None)
    }

    fn debounce_key(&self) -> Option<String> {
        Some(self.page.clone())
    }
}

/// The search index, a service elsewhere.
pub trait Index: Send + Sync + 'static {
    /// Replaces the entry of a page.
    ///
    /// # Errors
    /// Fails when the index cannot be reached or refuses the page.
    fn put(&self, page: &str) -> impl Future<Output = Result<(), IndexError>> + Send;
}

/// The index did not take a page.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// It may answer later.
    #[error("index does not answer")]
    Unreachable,
    /// It will never take this page.
    #[error("index refuses the page")]
    Refused,
}

/// The handler. A worker registers it: `quell.worker(index).register(index_page)`.
///
/// # Errors
/// Fails for now where the index cannot be reached, and for good where it refuses the page.
pub async fn index_page<I: Index>(task: IndexPage, ctx: Ctx<I>) -> Result<(), TaskError> {
    ctx.state().put(&task.page).await.map_err(|error| match error {
        IndexError::Unreachable => TaskError::retry(error),
        IndexError::Refused => TaskError::permanent(error),
    })
}
