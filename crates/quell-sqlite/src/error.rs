//! What SQLite's errors mean to a caller.

use quell_core::{Error, ErrorKind};
pub(crate) use quell_engine::sql::corrupt;

/// Primary result codes, <https://sqlite.org/rescode.html>.
mod code {
    pub(super) const BUSY: i32 = 5;
    pub(super) const LOCKED: i32 = 6;
    pub(super) const READONLY: i32 = 8;
    pub(super) const IOERR: i32 = 10;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANTOPEN: i32 = 14;
    pub(super) const NOTADB: i32 = 26;
}

/// Turns a driver's error into Quell's; `what` says what was being done.
pub(crate) fn explain(what: &'static str, error: sqlx::Error) -> Error {
    let (kind, help) = classify(&error);
    Error::new(kind, format!("cannot {what}: {help}")).with_source(error)
}

/// As [`explain`], for a commit: the transaction may have become durable (R1).
pub(crate) fn explain_commit(error: sqlx::Error) -> Error {
    let (kind, _) = classify(&error);
    if matches!(kind, ErrorKind::Contention | ErrorKind::Full | ErrorKind::ReadOnly) {
        return explain("commit", error);
    }
    Error::new(
        ErrorKind::UnknownOutcome,
        "the commit failed half-way: it happened or it did not; look before trying again",
    )
    .with_source(error)
}

fn classify(error: &sqlx::Error) -> (ErrorKind, &'static str) {
    match primary_code(error) {
        Some(code::BUSY | code::LOCKED) => {
            (ErrorKind::Contention, "another connection holds the file's write lock, try again")
        }
        Some(code::READONLY) => (
            ErrorKind::ReadOnly,
            "the file may not be written: give this process write access to it and its directory",
        ),
        Some(code::FULL) => {
            (ErrorKind::Full, "the disk is full: free some space, nothing was lost")
        }
        Some(code::CANTOPEN) => (
            ErrorKind::Unavailable,
            "the file cannot be opened: check that its directory exists and may be written",
        ),
        Some(code::NOTADB) => {
            (ErrorKind::Foreign, "the file is not an SQLite database: name another file")
        }
        Some(code::CORRUPT) => {
            (ErrorKind::Corrupt, "the database file is damaged: restore it from a backup")
        }
        Some(code::IOERR) => (ErrorKind::Unavailable, "the file could not be read or written"),
        Some(_) if is_missing_table(error) => (
            ErrorKind::Foreign,
            "this database has no Quell tables: open it once with `SqliteStore::open`",
        ),
        Some(_) => (ErrorKind::Internal, "SQLite refused a statement"),
        None => match error {
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
                (ErrorKind::Corrupt, "a row holds what Quell never wrote")
            }
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => {
                (ErrorKind::Unavailable, "the database did not answer")
            }
            sqlx::Error::WorkerCrashed => {
                (ErrorKind::Unavailable, "the connection's thread ended: open the store again")
            }
            _ => (ErrorKind::Internal, "the database driver failed"),
        },
    }
}

fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?;
    code.parse::<i32>().ok().map(|code| code & 0xff)
}

fn is_missing_table(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.message().starts_with("no such table"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_says_is_told_by_what_to_do_about_it() {
        let gone = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let decode = || Box::<dyn std::error::Error + Send + Sync>::from("no number");
        let column = sqlx::Error::ColumnDecode { index: "0".to_owned(), source: decode() };
        let table = [
            (column, ErrorKind::Corrupt),
            (sqlx::Error::Decode(decode()), ErrorKind::Corrupt),
            (sqlx::Error::Io(gone), ErrorKind::Unavailable),
            (sqlx::Error::PoolTimedOut, ErrorKind::Unavailable),
            (sqlx::Error::PoolClosed, ErrorKind::Unavailable),
            (sqlx::Error::WorkerCrashed, ErrorKind::Unavailable),
            (sqlx::Error::RowNotFound, ErrorKind::Internal),
        ];
        for (error, kind) in table {
            assert_eq!(classify(&error).0, kind, "{error}");
        }
    }

    #[tokio::test]
    async fn only_a_missing_table_says_that_the_database_is_not_quells() {
        use sqlx::Connection;
        let mut db = sqlx::SqliteConnection::connect("sqlite::memory:").await.unwrap();
        for (sql, kind) in
            [("select * from nowhere", ErrorKind::Foreign), ("selec", ErrorKind::Internal)]
        {
            let error = sqlx::query(sql).execute(&mut db).await.unwrap_err();
            assert_eq!(classify(&error).0, kind, "{sql}");
        }
    }
}
