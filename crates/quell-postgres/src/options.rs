//! Which server, which schema, and how many connections.

use std::str::FromStr;
use std::time::Duration;

use quell_core::history::Sink;
use quell_core::{Error, Result};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection, PgConnection};

use crate::PostgresStore;
use crate::connections::Connections;
use crate::error::explain;
use crate::opening::prepared;
use crate::push::{is_pooled, listen};
use crate::schema::{location, migrate};
use crate::sql::Sql;
use crate::tx::SESSION;
use tracing::warn;

/// How to open a store.
///
/// ```no_run
/// # async fn open() -> quell_core::Result<()> {
/// use quell_postgres::PostgresOptions;
///
/// let store = PostgresOptions::from_url("postgres://app@localhost/app")?
///     .schema("jobs")
///     .connections(4)
///     .open()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PostgresOptions {
    connect: PgConnectOptions,
    schema: String,
    connections: u32,
    acquire_timeout: Duration,
    history: Option<Sink>,
}

impl PostgresOptions {
    /// Reads `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, with `?schema=NAME` and
    /// `?connections=N` if wanted, beside what libpq knows (`sslmode` and so on).
    ///
    /// A server on another machine must show a certificate for its name, unless `sslmode` says
    /// otherwise.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for anything else. The URL, which may
    /// hold a password, is not repeated.
    pub fn from_url(url: &str) -> Result<Self> {
        let refuse = |why: String| Error::invalid("url", format!("store url: {why}"));
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(refuse("it does not begin with `postgres://`".to_owned()));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut schema, mut connections) = (None, None);
        let mut others = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("schema", name)) => schema = Some(name.to_owned()),
                Some(("connections", number)) => {
                    let number = number.parse::<u32>().ok().filter(|number| *number >= 1);
                    let told = || refuse("`connections` is not a number above 0".to_owned());
                    connections = Some(number.ok_or_else(told)?);
                }
                Some(_) => others.push(pair),
                None => return Err(refuse(format!("{pair:?} has no value"))),
            }
        }
        let has_ssl_mode = others.iter().any(|pair| pair.starts_with("sslmode="));
        let rest = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
        let connect = PgConnectOptions::from_str(&format!("{base}{rest}")).map_err(|error| {
            refuse("it reads postgres://USER:PASSWORD@HOST:PORT/DATABASE".to_owned())
                .with_source(error)
        })?;
        let remote = !is_local(&connect);
        let connect =
            if remote && !has_ssl_mode { connect.ssl_mode(PgSslMode::VerifyFull) } else { connect };
        let mut options = PostgresOptions::new(connect);
        options.schema = schema.unwrap_or(options.schema);
        options.connections = connections.unwrap_or(options.connections);
        Ok(options)
    }

    /// A store on the server that sqlx's options name, in the schema `quell`.
    pub fn new(connect: PgConnectOptions) -> Self {
        PostgresOptions {
            // Poolers refuse what they do not know, and no float is ever sent.
            connect: connect
                .application_name("quell")
                .extra_float_digits(None)
                .disable_statement_logging(),
            schema: "quell".to_owned(),
            connections: 8,
            acquire_timeout: Duration::from_secs(5),
            history: None,
        }
    }

    /// The schema that holds the store; it is made when missing. `quell` by default.
    ///
    /// A letter or `_`, then letters, digits and `_`, 40 bytes at most.
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self
    }

    /// The most connections that calls share, beside one that tells hints and one that hears them.
    /// 8 by default, and 1 at least.
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// How long a call waits for a free connection before it fails with
    /// [`ErrorKind::Unavailable`](quell_core::ErrorKind::Unavailable). 5 s by default.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.acquire_timeout = timeout;
        self
    }

    /// Where the events go that only the store sees.
    pub fn history(mut self, sink: Sink) -> Self {
        self.history = Some(sink);
        self
    }

    /// Opens the store, and brings its schema up to date; call it inside a tokio runtime, on which
    /// its listener will run.
    ///
    /// Behind a transaction pooler it works without prepared statements and without being woken.
    ///
    /// # Errors
    /// `Invalid` for a login, database or schema name that does not do, `Unavailable` where the
    /// server does not answer or has no connection left, `ReadOnly` for missing rights, `Newer` for
    /// the schema of a newer Quell, `Foreign` for one that is not Quell's; each says what to do.
    pub async fn open(self) -> Result<PostgresStore> {
        let (checked, mut first) = self.connect().await?;
        let location = location(&mut first, &checked).await?;
        let pooled = is_pooled(&self.connect, &mut first).await?;
        let listener = match pooled {
            true => None,
            false => listen(&self.for_hints(), &mut first, &checked).await?,
        };
        if listener.is_none() {
            warn!(
                pooled,
                "hints do not arrive, polling instead: connect to the server itself, or to a \
                 session pool, to be woken"
            );
        }
        // It was only needed to ask; how it ends changes nothing.
        let _ended = first.close().await;
        let sql = Sql::new(&self.schema, !pooled)?;
        let pool = self.pool(&self.connect, &sql, self.connections);
        let teller = self.pool(&self.for_hints(), &sql, 1);
        Ok(PostgresStore::start((pool, teller), sql, location, listener, self.history))
    }

    /// A connection to a store that is up to date.
    pub(crate) async fn connect(&self) -> Result<(Sql, PgConnection)> {
        let sql = Sql::new(&self.schema, true)?;
        let connected = self.connect.connect().await;
        let mut first = connected.map_err(|e| explain("connect to PostgreSQL", e))?;
        migrate(&mut first, &sql).await?;
        Ok((sql, first))
    }

    /// How the connections that tell and hear hints introduce themselves.
    fn for_hints(&self) -> PgConnectOptions {
        self.connect.clone().application_name(&hints_name(&self.schema))
    }

    fn pool(&self, connect: &PgConnectOptions, sql: &Sql, connections: u32) -> Connections {
        let (statements, greeting) = match sql.is_persistent() {
            true => {
                let set = SESSION.map(|setting| format!("set {setting}")).join("; ");
                (200, Some(format!("{set}; {}", prepared(sql))))
            }
            false => (0, None),
        };
        let connect = connect.clone().statement_cache_capacity(statements);
        Connections::new(connect, greeting, connections, self.acquire_timeout)
    }
}

/// Whether no network lies between: a socket, or an address of this machine.
fn is_local(connect: &PgConnectOptions) -> bool {
    let host = connect.get_host();
    connect.get_socket().is_some()
        || host.starts_with('/')
        || host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// How connections for notifications introduce themselves to the server, which keeps 63 bytes.
pub(crate) fn hints_name(schema: &str) -> String {
    let mut name = format!("quell hints {schema}");
    name.truncate(63);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r40_a_url_that_does_not_do_is_refused_without_its_password() {
        for bad in [
            "mysql://h/d",
            "postgres://u:secret@h/d?connections=0",
            "postgres://u:secret@h/d?connections",
            "postgres://u:secret@h:port/d",
        ] {
            let error = PostgresOptions::from_url(bad).unwrap_err();
            assert_eq!(error.field(), Some("url"), "{bad}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
    }

    #[test]
    fn other_machines_must_prove_who_they_are_unless_told_otherwise() {
        let mode = |url| PostgresOptions::from_url(url).unwrap().connect.get_ssl_mode();
        assert!(matches!(mode("postgres://db.example.com/d"), PgSslMode::VerifyFull));
        assert!(matches!(mode("postgres://db.example.com/d?sslmode=require"), PgSslMode::Require));
        for local in ["postgres://localhost/d", "postgres://127.0.0.1/d", "postgres://[::1]/d"] {
            assert!(matches!(mode(local), PgSslMode::Prefer), "{local}");
        }
    }

    #[test]
    fn a_url_may_name_schema_and_connections() {
        let options =
            PostgresOptions::from_url("postgres://h/d?schema=jobs&connections=3").unwrap();
        assert_eq!((options.schema.as_str(), options.connections), ("jobs", 3));
    }
}
