//! What PostgreSQL's errors mean to a caller.

use std::time::Duration;

use quell_core::{Error, ErrorKind};
pub(crate) use quell_engine::sql::corrupt;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

/// SQLSTATE codes, <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
mod code {
    pub(super) const SERIALIZATION: &str = "40001";
    /// Raised by `settle` in the schema.
    pub(super) const LEASE_LOST: &str = "40002";
    pub(super) const DEADLOCK: &str = "40P01";
    pub(super) const LOCK_NOT_AVAILABLE: &str = "55P03";
    pub(super) const UNIQUE: &str = "23505";
    pub(super) const CANCELED: &str = "57014";
    pub(super) const READ_ONLY: &str = "25006";
    /// A full queue of notifications is one.
    pub(super) const LIMIT_EXCEEDED: &str = "54000";
    pub(super) const DENIED: &str = "42501";
    pub(super) const TOO_MANY_CONNECTIONS: &str = "53300";
    pub(super) const CANNOT_CONNECT_NOW: &str = "57P03";
    pub(super) const NO_SCHEMA: &str = "3F000";
    pub(super) const NO_TABLE: &str = "42P01";
    pub(super) const NO_COLUMN: &str = "42703";
    pub(super) const NO_FUNCTION: &str = "42883";
    pub(super) const NO_DATABASE: &str = "3D000";
    pub(super) const IDLE_IN_TRANSACTION: &str = "25P03";
    pub(super) const ADMIN_SHUTDOWN: &str = "57P01";
    pub(super) const IDLE_SESSION: &str = "57P05";
}

/// What PostgreSQL's own code calls the place where a session ends between two statements, or in
/// the middle of one, which it then undoes.
const INTERRUPTED: &str = "ProcessInterrupts";

/// What the driver has no error for.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    /// No answer came for so long.
    Silent(Duration),
    /// There are servers, and none of them is what was asked for.
    NoHostFits,
}

impl std::error::Error for Fault {}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Silent(limit) => write!(f, "no answer within {limit:?}"),
            Fault::NoHostFits => f.write_str("no server of the url has the role asked for"),
        }
    }
}

/// No answer came within the limit; the connection is of no use any more.
pub(crate) fn silent(limit: Duration) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, Fault::Silent(limit)))
}

/// No server is what `target_session_attrs` asks for.
pub(crate) fn no_host_fits() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::NotConnected, Fault::NoHostFits))
}

fn fault(error: &sqlx::Error) -> Option<&Fault> {
    match error {
        sqlx::Error::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}

/// Turns a driver's error into Quell's; `what` says what was being done.
pub(crate) fn explain(what: &'static str, error: sqlx::Error) -> Error {
    let (kind, help) = classify(&error);
    Error::new(kind, format!("cannot {what}: {help}")).with_source(error)
}

/// As [`explain`], for a statement that commits: where it may have become durable, the outcome is
/// unknown (R1).
pub(crate) fn explain_commit(what: &'static str, error: sqlx::Error) -> Error {
    if !is_uncertain(&error) {
        // The server answered that it did not.
        return explain(what, error);
    }
    let message = format!(
        "the connection broke while trying to {what}: it happened or it did not; look before \
         trying again"
    );
    Error::new(ErrorKind::UnknownOutcome, message).with_source(error)
}

/// Whether a commit that failed so may have been done all the same: the connection broke, the
/// session was ended, or what answered is no server but a pooler that lost its own connection.
fn is_uncertain(error: &sqlx::Error) -> bool {
    let Some(answer) = answer(error) else { return is_broken(error) };
    let is_of = |classes: &[&str]| classes.iter().any(|class| answer.code().starts_with(class));
    // PostgreSQL names the place in its own code that failed; a pooler has none to name.
    is_of(&["08", "57P01", "57P02", "57P03"])
        || answer.routine().is_none() && is_of(&["XX", "58", "57"])
}

/// Whether the session was ended by a server that says so, or the statement could not be sent. A
/// statement that was not answered before is undone then, or was never begun.
pub(crate) fn is_undone(error: &sqlx::Error) -> bool {
    match (answer(error), error) {
        (Some(answer), _) => {
            [code::ADMIN_SHUTDOWN, code::IDLE_SESSION].contains(&answer.code())
                && answer.routine() == Some(INTERRUPTED)
        }
        // Only a write ends so: the last bytes of the statement did not go.
        (None, sqlx::Error::Io(error)) => error.kind() == std::io::ErrorKind::BrokenPipe,
        (None, _) => false,
    }
}

/// Whether nothing may follow on the connection.
pub(crate) fn is_lost(error: &sqlx::Error) -> bool {
    let is_last =
        |e: &PgDatabaseError| matches!(e.severity(), PgSeverity::Fatal | PgSeverity::Panic);
    answer(error).map_or_else(|| is_broken(error), is_last)
}

/// Whether the connection was lost before a deadline: another one may do.
pub(crate) fn is_lost_soon(error: &sqlx::Error) -> bool {
    is_lost(error) && fault(error).is_none()
}

/// Whether a limit of the server was exceeded, as when its queue of notifications is full.
pub(crate) fn is_full(error: &sqlx::Error) -> bool {
    answer(error).is_some_and(|answer| answer.code() == code::LIMIT_EXCEEDED)
}

/// Whether the server takes no writes.
pub(crate) fn is_standby(error: &sqlx::Error) -> bool {
    answer(error).is_some_and(|answer| answer.code() == code::READ_ONLY)
}

/// Whether a server that could be reached will not let one in, whichever of several it is.
pub(crate) fn is_final(error: &sqlx::Error) -> bool {
    answer(error).is_some_and(|e| e.code().starts_with("28") || e.code() == code::NO_DATABASE)
}

fn answer(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    error.as_database_error()?.try_downcast_ref()
}

/// Whether another try, from the start, is what the server asks for: a deadlock, or another call
/// that opened the same window or took the same key a moment earlier. None of them committed.
pub(crate) fn wants_retry(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|e| e.downcast_ref::<sqlx::Error>());
    // A process that was suspended for a while finds its transaction undone.
    source.is_some_and(|e| is_conflict(e) || has_code(e, &[code::IDLE_IN_TRANSACTION]))
}

/// Whether the server undid a statement for a conflict with another call, and goes on.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    has_code(error, &[code::DEADLOCK, code::SERIALIZATION, code::UNIQUE])
}

fn has_code(error: &sqlx::Error, codes: &[&str]) -> bool {
    error.as_database_error().and_then(|e| e.code()).is_some_and(|code| codes.contains(&&*code))
}

/// Whether a server that could not be connected to is about to start, or to have connections again.
pub(crate) fn is_starting(error: &sqlx::Error) -> bool {
    match error {
        // A failover is in progress.
        _ if fault(error) == Some(&Fault::NoHostFits) => true,
        sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        _ => has_code(error, &[code::TOO_MANY_CONNECTIONS, code::CANNOT_CONNECT_NOW]),
    }
}

/// Whether the connection, not the server, failed.
fn is_broken(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::Tls(_))
}

fn classify(error: &sqlx::Error) -> (ErrorKind, &'static str) {
    let code = error.as_database_error().and_then(|e| e.code());
    match code.as_deref() {
        Some(code) => classify_code(code),
        None => match error {
            sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::Decode(_) => (ErrorKind::Corrupt, "a row holds what Quell never wrote"),
            sqlx::Error::PoolTimedOut => (
                ErrorKind::Unavailable,
                "no connection was to be had in time: the server is away, or has none left (raise \
                 `max_connections`), or those of this process are busy (raise `connections`, or look \
                 for slow statements)",
            ),
            _ if matches!(fault(error), Some(Fault::Silent(_))) => (
                ErrorKind::Unavailable,
                "no answer came in time, and the connection was given up: check the server and the \
                 way to it, or raise `timeout_ms`",
            ),
            _ if fault(error) == Some(&Fault::NoHostFits) => (
                ErrorKind::Unavailable,
                "no server of the url is what `target_session_attrs` asks for: a failover may be \
                 in progress",
            ),
            sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::PoolClosed => {
                (ErrorKind::Unavailable, "the server did not answer: check that it runs")
            }
            sqlx::Error::Tls(_) => (
                ErrorKind::Unavailable,
                "no TLS connection: check the server's certificate and name, or `sslmode`",
            ),
            sqlx::Error::Configuration(_) => {
                (ErrorKind::Invalid, "the url does not do: postgres://USER:PASSWORD@HOST/DATABASE")
            }
            _ => (ErrorKind::Internal, "the database driver failed"),
        },
    }
}

fn classify_code(code: &str) -> (ErrorKind, &'static str) {
    match code {
        code::SERIALIZATION | code::DEADLOCK | code::LOCK_NOT_AVAILABLE | code::UNIQUE => {
            (ErrorKind::Contention, "another process holds what this needs, try again")
        }
        code::LEASE_LOST => (
            ErrorKind::IllegalMove,
            "the lease was lost and another attempt may run: roll the transaction back",
        ),
        code::CANCELED => (
            ErrorKind::Unavailable,
            "the server cancelled the statement, for example by `statement_timeout`: nothing was \
             changed",
        ),
        // It passes: what a worker has to settle is kept until then.
        code::READ_ONLY => (
            ErrorKind::Unavailable,
            "the server takes no writes: it is a standby, or a failover is in progress",
        ),
        code::DENIED => (
            ErrorKind::ReadOnly,
            "this role may not: grant it what the operations page lists for its part",
        ),
        code::TOO_MANY_CONNECTIONS => (
            ErrorKind::Unavailable,
            "the server has no connection left: raise `max_connections`, or lower `connections` \
             of the processes that share it",
        ),
        code::NO_SCHEMA | code::NO_TABLE | code::NO_COLUMN | code::NO_FUNCTION => (
            ErrorKind::Foreign,
            "this database has no Quell schema of that name: open it once with \
             `PostgresStore::open`",
        ),
        code::NO_DATABASE => (ErrorKind::Invalid, "there is no such database: create it"),
        code::IDLE_IN_TRANSACTION => {
            (ErrorKind::Unavailable, "the server ended an idle transaction: nothing was changed")
        }
        _ if code.starts_with("28") => {
            (ErrorKind::Invalid, "the server refused the login: check user and password")
        }
        // Out of disk or memory.
        _ if code.starts_with("53") => {
            (ErrorKind::Full, "the server is out of space: free some, nothing was lost")
        }
        // Shut down, crashed, starting up, connection lost.
        _ if code.starts_with("57P") || code.starts_with("08") => {
            (ErrorKind::Unavailable, "the server is going down or coming up: try again")
        }
        _ if code.starts_with("22") => (ErrorKind::Invalid, "the server refused a value"),
        _ if code.starts_with("XX") => {
            (ErrorKind::Corrupt, "the server reports damage: see its log")
        }
        _ => (ErrorKind::Internal, "PostgreSQL refused a statement"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_says_is_told_by_what_to_do_about_it() {
        let gone = || sqlx::Error::Io(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        let decode = || Box::<dyn std::error::Error + Send + Sync>::from("no number");
        let table = [
            (sqlx::Error::Decode(decode()), ErrorKind::Corrupt),
            (gone(), ErrorKind::Unavailable),
            (sqlx::Error::PoolTimedOut, ErrorKind::Unavailable),
            (sqlx::Error::PoolClosed, ErrorKind::Unavailable),
            (sqlx::Error::Tls(decode()), ErrorKind::Unavailable),
            (sqlx::Error::RowNotFound, ErrorKind::Internal),
        ];
        for (error, kind) in table {
            assert_eq!(classify(&error).0, kind, "{error}");
        }
        assert!(explain_commit("commit", gone()).is_unknown_outcome());
        assert!(!explain_commit("commit", sqlx::Error::PoolTimedOut).is_unknown_outcome());
    }

    #[test]
    fn codes_of_the_server_are_told_apart() {
        let table = [
            ("40001", ErrorKind::Contention),
            ("40002", ErrorKind::IllegalMove),
            ("55P03", ErrorKind::Contention),
            ("57014", ErrorKind::Unavailable),
            ("57P01", ErrorKind::Unavailable),
            ("57P03", ErrorKind::Unavailable),
            ("08006", ErrorKind::Unavailable),
            ("53300", ErrorKind::Unavailable),
            ("53100", ErrorKind::Full),
            ("25006", ErrorKind::Unavailable),
            ("42501", ErrorKind::ReadOnly),
            ("42P01", ErrorKind::Foreign),
            ("28P01", ErrorKind::Invalid),
            ("3D000", ErrorKind::Invalid),
            ("22021", ErrorKind::Invalid),
            ("XX001", ErrorKind::Corrupt),
            ("42601", ErrorKind::Internal),
        ];
        for (code, kind) in table {
            assert_eq!(classify_code(code).0, kind, "{code}");
        }
    }
}
