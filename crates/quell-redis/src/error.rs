//! What Redis's errors mean to a caller.

use quell_core::{Error, ErrorKind};
use redis::{ErrorKind as RedisKind, RedisError, ServerErrorKind};

use crate::trust::is_distrust;

/// Turns a driver's error into Quell's; `what` says what was being done.
pub(crate) fn explain(what: &'static str, error: RedisError) -> Error {
    let (kind, help) = classify(&error);
    Error::new(kind, format!("cannot {what}: {help}")).with_source(error)
}

/// As [`explain`], for what may have been done although no answer came (R1).
pub(crate) fn lost(what: &'static str, error: RedisError) -> Error {
    let message = format!(
        "the connection broke while trying to {what}: it happened or it did not; look before \
         trying again"
    );
    Error::new(ErrorKind::UnknownOutcome, message).with_source(error)
}

fn classify(error: &RedisError) -> (ErrorKind, &'static str) {
    let wrapped = error.detail().filter(|_| error.code() == Some("ERR"));
    let reported = error.code().and_then(classify_code);
    if let Some(classified) = reported.or_else(|| wrapped.and_then(classify_wrapped)) {
        return classified;
    }
    match error.kind() {
        RedisKind::Server(ServerErrorKind::BusyLoading) => {
            (ErrorKind::Unavailable, "the server is loading its data")
        }
        RedisKind::Server(
            ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::TryAgain
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask,
        )
        | RedisKind::ClusterConnectionNotFound => {
            (ErrorKind::Unavailable, "the shard of the Cluster is away or moves")
        }
        RedisKind::Server(ServerErrorKind::CrossSlot) => (
            ErrorKind::Internal,
            "keys of several slots were named: the server is a Cluster, say so in the URL",
        ),
        RedisKind::MasterNameNotFoundBySentinel => {
            (ErrorKind::Unavailable, "no Sentinel knows a master of that name that is up")
        }
        RedisKind::AuthenticationFailed => {
            (ErrorKind::Unavailable, "the server refuses the user or the password")
        }
        RedisKind::InvalidClientConfig => (ErrorKind::Invalid, "the URL names no server"),
        RedisKind::Io if is_distrust(error) => (
            ErrorKind::Unavailable,
            "no TLS connection: check the server's certificate and name, and `ca_file`",
        ),
        RedisKind::Io => (ErrorKind::Unavailable, "the server is away or does not answer in time"),
        // A reply that ends half-way is of this kind too.
        RedisKind::Parse => (
            ErrorKind::Unavailable,
            "the connection broke in the middle of an answer, or no Redis answers there",
        ),
        RedisKind::UnexpectedReturnType => {
            (ErrorKind::Corrupt, "the server answers what Quell does not understand")
        }
        _ => (ErrorKind::Unavailable, "the server refuses"),
    }
}

/// Classifies the error of a command in a script. Before version 7, servers wrap it: `Error running
/// script (call to f_…): @user_script:1: WRONGTYPE …`.
fn classify_wrapped(detail: &str) -> Option<(ErrorKind, &'static str)> {
    if detail.starts_with("The user executing the script can't") {
        return classify_code("NOPERM");
    }
    let (_, reported) = detail.split_once("@user_script")?;
    reported.split_whitespace().find_map(|word| classify_code(word.trim_start_matches('-')))
}

/// By the first word of what the server said.
fn classify_code(code: &str) -> Option<(ErrorKind, &'static str)> {
    Some(match code {
        "OOM" => (
            ErrorKind::Full,
            "the server's memory is full: nothing was written; raise `maxmemory`, or let workers \
             catch up",
        ),
        "WRONGTYPE" => (
            ErrorKind::Foreign,
            "a key below the store's prefix is not Quell's: choose another prefix, or rename the \
             key",
        ),
        "MISCONF" => (
            ErrorKind::Unavailable,
            "the server cannot write to its disk and takes no writes: see its log",
        ),
        "NOREPLICAS" => (ErrorKind::Unavailable, "too few replicas are connected"),
        "NOPERM" => (
            ErrorKind::Unavailable,
            "the user lacks a right: it needs the store's keys and channel, and the commands that \
             docs/redis.md lists",
        ),
        "NOAUTH" | "WRONGPASS" => {
            (ErrorKind::Unavailable, "the server wants a user and a password: give them in the URL")
        }
        "READONLY" => {
            (ErrorKind::Unavailable, "the server is a replica now: a failover is in progress")
        }
        "BUSY" => (ErrorKind::Unavailable, "the server is busy with a script of another client"),
        "UNKILLABLE" => (ErrorKind::Unavailable, "the server is busy with a script that writes"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r40_what_a_script_was_told_is_understood_wrapped_too() {
        let script = "Error running script (call to f_0123abcd): @user_script:37: ";
        for (reported, kind) in [
            (
                "@user_script: 12: -OOM command not allowed when used memory > \'maxmemory\'.",
                ErrorKind::Full,
            ),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                ErrorKind::Foreign,
            ),
        ] {
            let found = classify_wrapped(&format!("{script}{reported}"));
            assert_eq!(found.map(|(kind, _)| kind), Some(kind), "{reported}");
        }
        let right = "The user executing the script can't run this command or subcommand";
        assert_eq!(classify_wrapped(right).map(|(kind, _)| kind), Some(ErrorKind::Unavailable));
        assert_eq!(classify_wrapped("wrong number of arguments"), None);
        assert_eq!(classify_wrapped(&format!("{script}attempt to index nil")), None);
    }
}
