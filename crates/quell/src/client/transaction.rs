//! The rim where callers' own transactions meet the store:
//! [`within`](crate::trigger::Trigger::within) and [`settle_in`](crate::Ctx::settle_in),
//! [`settle_in_with`](crate::Ctx::settle_in_with).
//!
//! A database takes part by [`Database`], which is sealed: one implementation per store that lives
//! in a caller's database.

use futures_util::future::BoxFuture;
use quell_core::{Batch, Error, ErrorKind, Lease, Location, Now, Payload, Result, Store};
use sqlx::Transaction;

mod sealed {
    pub trait Sealed {}
}

/// When workers are woken for the triggers of a transaction.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum Wakes {
    /// By the commit, as the store is set.
    AtCommit,
    /// By the caller.
    AfterCommit,
}

/// The settlement of an attempt that succeeded.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Success<'t> {
    /// The attempt.
    pub lease: Lease,
    /// When it ended.
    pub now: Now,
    /// What it made.
    pub output: Option<&'t Payload>,
}

/// A database whose transactions can trigger; those of the features `sqlite` and `postgres` can.
pub trait Database: sqlx::Database + sealed::Sealed {
    #[doc(hidden)]
    fn trigger<'t>(
        tx: &'t mut Transaction<'_, Self>,
        store: &'t dyn Store,
        batch: &'t Batch,
        wakes: Wakes,
    ) -> BoxFuture<'t, Result<()>>;
}

/// A database whose transactions can settle a job as well.
pub trait SettlingDatabase: Database {
    #[doc(hidden)]
    fn settle<'t>(
        tx: &'t mut Transaction<'_, Self>,
        store: &'t dyn Store,
        success: Success<'t>,
    ) -> BoxFuture<'t, Result<()>>;
}

/// Lets a database settle by the functions of its store's crate; `$location` finds the store in it.
macro_rules! settles_by {
    ($database:ty, $store:ident, $location:ident) => {
        impl SettlingDatabase for $database {
            fn settle<'t>(
                tx: &'t mut Transaction<'_, Self>,
                store: &'t dyn Store,
                success: Success<'t>,
            ) -> BoxFuture<'t, Result<()>> {
                let Success { lease, now, output } = success;
                Box::pin(async move {
                    let store = $location(store)?;
                    $store::settle_in(tx, store, &lease, now, output).await
                })
            }
        }
    };
}

#[cfg(feature = "sqlite")]
impl sealed::Sealed for sqlx::Sqlite {}

#[cfg(feature = "sqlite")]
impl Database for sqlx::Sqlite {
    fn trigger<'t>(
        tx: &'t mut Transaction<'_, Self>,
        store: &'t dyn Store,
        batch: &'t Batch,
        // A commit sends no notification there: each process notices it.
        _wakes: Wakes,
    ) -> BoxFuture<'t, Result<()>> {
        Box::pin(async move { quell_sqlite::trigger_in(tx, in_a_file(store)?, batch).await })
    }
}

#[cfg(feature = "sqlite")]
settles_by!(sqlx::Sqlite, quell_sqlite, in_a_file);

#[cfg(feature = "postgres")]
impl sealed::Sealed for sqlx::Postgres {}

#[cfg(feature = "postgres")]
impl Database for sqlx::Postgres {
    fn trigger<'t>(
        tx: &'t mut Transaction<'_, Self>,
        store: &'t dyn Store,
        batch: &'t Batch,
        wakes: Wakes,
    ) -> BoxFuture<'t, Result<()>> {
        Box::pin(async move {
            let store = in_a_schema(store)?;
            match wakes {
                Wakes::AtCommit => quell_postgres::trigger_in(tx, store, batch).await,
                Wakes::AfterCommit => quell_postgres::trigger_in_silently(tx, store, batch).await,
            }
        })
    }
}

#[cfg(feature = "postgres")]
settles_by!(sqlx::Postgres, quell_postgres, in_a_schema);

/// A store in a SQLite file.
#[cfg(feature = "sqlite")]
fn in_a_file(store: &dyn Store) -> Result<&Location> {
    store.location().filter(|place| place.schema.is_none()).ok_or_else(other_database)
}

/// A store in a schema of PostgreSQL.
#[cfg(feature = "postgres")]
fn in_a_schema(store: &dyn Store) -> Result<&Location> {
    store.location().filter(|place| place.schema.is_some()).ok_or_else(other_database)
}

fn other_database() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "the transaction is not of the database that holds the store: trigger outside of it, or \
         open the store there",
    )
}
