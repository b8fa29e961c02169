//! The two builds: this commit's program and the earlier one's, and what `compat/earlier.toml` says of
//! their stores.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

/// Where `cargo xtask test` says that the earlier program is.
const EARLIER: &str = "QUELL_TEST_EARLIER";

/// A build of `quell`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Build {
    /// Of the commit that the pin names.
    Earlier,
    /// Of this commit.
    New,
}

impl Build {
    pub(super) fn name(self) -> &'static str {
        match self {
            Build::Earlier => "earlier",
            Build::New => "new",
        }
    }

    /// Its program with these arguments.
    pub(super) fn quell(self, args: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command.args(args).env_remove("QUELL_SERVER").env("QUELL_LOG", "warn");
        command
    }

    fn program(self) -> PathBuf {
        match self {
            Build::New => env!("CARGO_BIN_EXE_quell").into(),
            Build::Earlier => std::env::var_os(EARLIER).map(PathBuf::from).unwrap_or_else(|| {
                panic!(
                    "no earlier build for tests: run `cargo xtask test`, or `cargo xtask earlier` \
                     before `cargo xtask with-services`"
                )
            }),
        }
    }
}

/// The pin.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Pin {
    #[expect(dead_code, reason = "xtask reads it")]
    commit: String,
    #[expect(dead_code, reason = "for people")]
    about: String,
    earlier_build: Stores,
    #[serde(default)]
    known_defects: BTreeMap<String, Vec<String>>,
}

impl Pin {
    fn read() -> Pin {
        toml::from_str(include_str!("../../../../../compat/earlier.toml")).unwrap()
    }
}

/// What the earlier build does with a store that the new one has opened.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stores {
    sqlite: Meets,
    postgres: Meets,
    redis: Meets,
    azure: Meets,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Meets {
    /// It works on it, whenever it starts.
    Joins,
    /// It goes on where it runs already; where it starts it is refused.
    RunsOn,
}

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sqlite,
    Postgres,
    Redis,
    Azure,
}

impl Kind {
    /// A store of its own, below this folder or on the server that tests share.
    pub(super) fn url(self, folder: &std::path::Path) -> String {
        match self {
            Kind::Sqlite => format!("sqlite://{}", folder.join("q.db").display()),
            Kind::Postgres => quell_services::url_for_tests(),
            Kind::Redis => {
                let (server, prefix) = quell_services::redis_url_for_tests();
                format!("{server}?prefix={prefix}")
            }
            Kind::Azure => {
                let (_, table) = quell_services::azurite_for_tests();
                let connection = quell_services::AZURITE;
                // On a busy machine Azurite is slow.
                format!("azure://devstoreaccount1/{table}?connection={connection}&timeout_ms=60000")
            }
        }
    }

    /// Properties that the earlier build breaks on it, as the pin says.
    pub(super) fn known_defects(self) -> Vec<String> {
        let name = format!("{self:?}").to_lowercase();
        Pin::read().known_defects.remove(&name).unwrap_or_default()
    }

    /// What the pin says of it.
    pub(super) fn meets(self) -> Meets {
        let Stores { sqlite, postgres, redis, azure } = Pin::read().earlier_build;
        match self {
            Kind::Sqlite => sqlite,
            Kind::Postgres => postgres,
            Kind::Redis => redis,
            Kind::Azure => azure,
        }
    }
}
