//! Which server, which schema, and how many connections.

use std::time::Duration;

use quell_core::history::Sink;
use quell_core::{Error, Result};
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use tracing::warn;

use crate::PostgresStore;
use crate::bounded::Bounded;
use crate::connections::{Connections, Limits};
use crate::error::explain;
use crate::hosts::{Hosts, TargetSessionAttrs, verified};
use crate::hot::opening::prepared;
use crate::listen::{is_pooled, listen};
use crate::schema::{Upgrade, location, migrate, set_notifies};
use crate::sql::Sql;
use crate::tx::{SESSION, statement_timeout, tcp_settings};

/// The longest that a notification may take: it is small.
const HINT: Duration = Duration::from_secs(5);

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
    hosts: Hosts,
    schema: String,
    connections: u32,
    limits: Limits,
    upgrade: Upgrade,
    notifies: Option<bool>,
    history: Option<Sink>,
}

impl PostgresOptions {
    /// Reads `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, with `?schema=NAME`, `?connections=N`,
    /// `?timeout_ms=N` ([`PostgresOptions::call_timeout`]) and `?notify_in_transactions=on` or `=off`
    /// ([`PostgresOptions::notify_in_transactions`]) if wanted, beside what libpq knows (`sslmode`,
    /// `application_name` and so on). The application name is `quell` where neither the URL nor
    /// `PGAPPNAME` has one; the two connections for notifications have their own.
    ///
    /// Several hosts may be named, as in `postgres://app@a:5432,b:5432/app`. The first one that
    /// takes writes is used, or what `?target_session_attrs=…` asks for
    /// ([`PostgresOptions::target_session_attrs`]); names are resolved again for each connection.
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
        let (mut schema, mut connections, mut timeout, mut target) = (None, None, None, None);
        let mut notifies = None;
        let mut others = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("schema", name)) => schema = Some(name.to_owned()),
                Some(("connections", number)) => {
                    let number = number.parse::<u32>().ok().filter(|number| *number >= 1);
                    let reported = || refuse("`connections` is not a number above 0".to_owned());
                    connections = Some(number.ok_or_else(reported)?);
                }
                Some(("timeout_ms", number)) => {
                    let number = number.parse::<u32>().ok().filter(|number| *number >= 1);
                    let error = || refuse("`timeout_ms` is not a number above 0".to_owned());
                    timeout = Some(Duration::from_millis(number.ok_or_else(error)?.into()));
                }
                Some(("notify_in_transactions", word)) => {
                    let known = [("on", true), ("off", false)];
                    let found = known.into_iter().find(|(name, _)| *name == word);
                    let error = || refuse("`notify_in_transactions` is not on or off".to_owned());
                    notifies = Some(found.ok_or_else(error)?.1);
                }
                Some(("target_session_attrs", attrs)) => {
                    target = Some(attrs.parse::<TargetSessionAttrs>()?);
                }
                Some(("host" | "hostaddr" | "port", hosts)) if hosts.contains(',') => {
                    return Err(refuse("name several hosts before the database".to_owned()));
                }
                Some(_) => others.push(pair),
                None => return Err(refuse(format!("{pair:?} has no value"))),
            }
        }
        let has_ssl_mode = others.iter().any(|pair| pair.starts_with("sslmode="));
        let rest = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
        let hosts = Hosts::parse(base, &rest).map_err(|error| {
            refuse("it reads postgres://USER:PASSWORD@HOST:PORT/DATABASE".to_owned())
                .with_source(error)
        })?;
        let hosts = if has_ssl_mode { hosts } else { hosts.with(verified) };
        let mut options = PostgresOptions::of(hosts);
        options.limits.call = timeout.unwrap_or(options.limits.call);
        target.into_iter().for_each(|target| options.hosts.set_target(target));
        options.schema = schema.unwrap_or(options.schema);
        options.connections = connections.unwrap_or(options.connections);
        options.notifies = notifies;
        Ok(options)
    }

    /// A store on the server that sqlx's options name, in the schema `quell`.
    pub fn new(connect: PgConnectOptions) -> Self {
        PostgresOptions::of(Hosts::one(connect))
    }

    fn of(hosts: Hosts) -> Self {
        let (acquire, call) = (Duration::from_secs(5), Duration::from_secs(10));
        PostgresOptions {
            // Poolers refuse what they do not know, and no float is ever sent.
            hosts: hosts.with(|connect| {
                let name = connect.get_application_name().unwrap_or("quell").to_owned();
                connect.application_name(&name).extra_float_digits(None).disable_statement_logging()
            }),
            schema: "quell".to_owned(),
            connections: 8,
            limits: Limits { acquire, call },
            upgrade: Upgrade { patience: Duration::from_secs(60), later: None },
            notifies: None,
            history: None,
        }
    }

    /// The schema that holds the store; it is made when missing. `quell` by default.
    ///
    /// An ASCII alphabetic character or `_`, then alphanumeric ones and `_`, 40 bytes at most.
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self
    }

    /// The most connections that calls share, beside one that sends notifications and one that receives them.
    /// 8 by default, and 1 at least.
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// How long a call waits for a free connection before it fails with
    /// [`ErrorKind::Unavailable`](quell_core::ErrorKind::Unavailable). 5 s by default.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.limits.acquire = timeout;
        self
    }

    /// How long the server may take to answer a statement: then the connection is closed, and the
    /// call fails with [`ErrorKind::Unavailable`](quell_core::ErrorKind::Unavailable), or with
    /// [`ErrorKind::UnknownOutcome`](quell_core::ErrorKind::UnknownOutcome) where it may have
    /// committed. 10 s by default. What reads every row, as counts do, may take six times as long, a
    /// statement of a migration sixty times.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.limits.call = timeout;
        self
    }

    /// How long a migration tries to have its locks before it fails with
    /// [`ErrorKind::Contention`](quell_core::ErrorKind::Contention). 60 s by default. It never holds
    /// up others for longer than 200 ms meanwhile.
    pub fn migration_timeout(mut self, timeout: Duration) -> Self {
        self.upgrade.patience = timeout;
        self
    }

    /// Opens the store as a later version of Quell would whose schema has one migration more: a test
    /// of how versions meet.
    #[doc(hidden)]
    pub fn later_version(mut self, migration: &'static str) -> Self {
        self.upgrade.later = Some(migration);
        self
    }

    /// What a server must be to be used, where several are named, or one whose role changes:
    /// [`TargetSessionAttrs::ReadWrite`] by default where the URL names several hosts.
    pub fn target_session_attrs(mut self, target: TargetSessionAttrs) -> Self {
        self.hosts.set_target(target);
        self
    }

    /// Sets for the whole store, when it is opened, whether callers' transactions notify at their
    /// commit; where no process says so it stays as it is, and they do at first. See
    /// [`PostgresStore::notify_in_transactions`] for what it means.
    pub fn notify_in_transactions(mut self, enabled: bool) -> Self {
        self.notifies = Some(enabled);
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
        if let Some(enabled) = self.notifies {
            set_notifies(&mut first, &checked, enabled).await?;
        }
        let call = self.limits.call;
        let pooled = is_pooled(&self.hosts, &mut first, call).await?;
        let listener = match pooled {
            true => None,
            false => listen(self.for_hints(), &mut first, &checked, call).await?,
        };
        if listener.is_none() {
            warn!(
                pooled,
                "hints do not arrive, polling instead: connect to the server itself, or to a \
                 session pool, to be woken"
            );
        }
        first.close().await;
        let sql = Sql::new(&self.schema, !pooled)?;
        let pool = self.pool(&self.hosts, &sql, self.connections, self.limits);
        let hints = Limits { call: call.min(HINT), ..self.limits };
        let teller = self.pool(&self.for_hints(), &sql, 1, hints);
        Ok(PostgresStore::start((pool, teller), sql, location, listener, self.history))
    }

    /// A connection to a store that is up to date.
    pub(crate) async fn connect(&self) -> Result<(Sql, Bounded)> {
        let sql = Sql::new(&self.schema, true)?;
        let connected = self.hosts.connect_alone(self.limits.call).await;
        let mut first = connected.map_err(|e| explain("connect to PostgreSQL", e))?;
        migrate(&mut first, &sql, self.limits.call, self.upgrade).await?;
        Ok((sql, first))
    }

    /// The hosts for the connections that send and receive notifications, with their application name.
    fn for_hints(&self) -> Hosts {
        let name = hints_name(&self.schema);
        self.hosts.with(|connect| connect.application_name(&name))
    }

    fn pool(&self, hosts: &Hosts, sql: &Sql, connections: u32, limits: Limits) -> Connections {
        let (statements, greeting) = match sql.is_persistent() {
            true => {
                let set = SESSION.map(|setting| format!("set {setting}")).join("; ");
                let (tcp, limit) = (tcp_settings(), statement_timeout(limits.call));
                (200, Some(format!("{set}; {tcp}; {limit}; {}", prepared(sql))))
            }
            false => (0, None),
        };
        let hosts = hosts.with(|connect| connect.statement_cache_capacity(statements));
        Connections::new(hosts, greeting, connections, limits)
    }
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
    use sqlx::postgres::PgSslMode;

    #[test]
    fn r40_a_url_that_does_not_do_is_refused_without_its_password() {
        for bad in [
            "mysql://h/d",
            "postgres://u:secret@h/d?connections=0",
            "postgres://u:secret@h/d?connections",
            "postgres://u:secret@h:port/d",
            "postgres://u:secret@h/d?timeout_ms=0",
            "postgres://u:secret@h/d?target_session_attrs=master",
            "postgres://u:secret@h/d?host=a,b",
            "postgres://u:secret@h/d?notify_in_transactions=maybe",
        ] {
            let error = PostgresOptions::from_url(bad).unwrap_err();
            assert_eq!(error.field(), Some("url"), "{bad}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
    }

    #[test]
    fn other_machines_must_prove_who_they_are_unless_told_otherwise() {
        let mode = |url| {
            let options = PostgresOptions::from_url(url).unwrap();
            options.hosts.in_order().next().unwrap().get_ssl_mode()
        };
        assert!(matches!(mode("postgres://db.example.com/d"), PgSslMode::VerifyFull));
        assert!(matches!(mode("postgres://db.example.com/d?sslmode=require"), PgSslMode::Require));
        for local in ["postgres://localhost/d", "postgres://127.0.0.1/d", "postgres://[::1]/d"] {
            assert!(matches!(mode(local), PgSslMode::Prefer), "{local}");
        }
    }

    #[test]
    fn a_url_may_name_schema_connections_and_a_timeout() {
        let url = "postgres://h/d?schema=jobs&connections=3&timeout_ms=250";
        let options = PostgresOptions::from_url(url).unwrap();
        assert_eq!((options.schema.as_str(), options.connections), ("jobs", 3));
        assert_eq!(options.limits.call, Duration::from_millis(250));
    }

    #[test]
    fn connections_have_the_application_name_of_the_url_but_those_for_notifications() {
        let options =
            PostgresOptions::from_url("postgres://h/d?schema=jobs&application_name=billing");
        let options = options.unwrap();
        let name = |hosts: &Hosts| {
            hosts.in_order().next().unwrap().get_application_name().map(ToOwned::to_owned)
        };
        assert_eq!(name(&options.hosts).as_deref(), Some("billing"));
        assert_eq!(name(&options.for_hints()).as_deref(), Some("quell hints jobs"));
    }
}
