//! Statements for one schema: `quell.` in a text stands for the schema's quoted name.
//!
//! Texts are rewritten once and kept, so that each stays one prepared statement.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use quell_core::{Error, Result};
use sha2::{Digest, Sha256};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres};

/// Derived names must stay below PostgreSQL's 63 bytes, past which it cuts silently.
const MAX_SCHEMA_BYTES: usize = 40;

/// A statement with its values.
pub(crate) type PgQuery = Query<'static, Postgres, PgArguments>;

/// The statements of one schema.
#[derive(Debug)]
pub(crate) struct Sql {
    /// Quoted, with the dot.
    prefix: String,
    schema: String,
    channel: String,
    /// Whether statements stay prepared on their connection, which a transaction pooler breaks.
    persistent: bool,
    rewritten: RwLock<HashMap<&'static str, Arc<str>>>,
}

impl Sql {
    /// The statements of `schema`.
    ///
    /// Fails with `Invalid` for a name that would need more than quotes.
    pub(crate) fn new(schema: &str, persistent: bool) -> Result<Self> {
        check_schema(schema)?;
        Ok(Sql {
            prefix: format!("\"{schema}\"."),
            schema: schema.to_owned(),
            channel: channel(schema),
            persistent,
            rewritten: RwLock::default(),
        })
    }

    /// Whether statements stay prepared.
    pub(crate) fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// The schema's name, unquoted.
    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    /// The channel of this schema's notifications.
    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// A text for this schema.
    pub(crate) fn text(&self, template: &'static str) -> Arc<str> {
        let known = |texts: &HashMap<&'static str, Arc<str>>| texts.get(template).cloned();
        if let Some(text) = known(&self.rewritten.read().unwrap_or_else(PoisonError::into_inner)) {
            return text;
        }
        let text: Arc<str> = self.rewrite(template).into();
        let mut texts = self.rewritten.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(texts.entry(template).or_insert(text))
    }

    /// A text for this schema, which is not kept.
    pub(crate) fn rewrite(&self, template: &str) -> String {
        let text = template.replace("quell.", &self.prefix).replace("{channel}", &self.channel);
        text.replace("{schema}", &self.schema)
    }

    /// A statement of this schema.
    pub(crate) fn query(&self, template: &'static str) -> PgQuery {
        // Only the schema's checked name comes from outside.
        sqlx::query(AssertSqlSafe(self.text(template))).persistent(self.persistent)
    }
}

fn check_schema(schema: &str) -> Result<()> {
    let starts_well = schema.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let is_word = schema.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if starts_well && is_word && schema.len() <= MAX_SCHEMA_BYTES && !schema.starts_with("pg_") {
        return Ok(());
    }
    Err(Error::invalid(
        "schema",
        format!(
            "schema name {schema:?} does not do: begin with a letter or `_`, go on with letters, \
             digits and `_`, {MAX_SCHEMA_BYTES} bytes at most, and not `pg_`"
        ),
    ))
}

/// A channel's name has no schema, so the schema is in it.
fn channel(schema: &str) -> String {
    let digest = Sha256::digest(schema.as_bytes());
    let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("quell_{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r40_a_schema_is_a_plain_word_and_short_enough_to_build_names_on() {
        let long = "s".repeat(40);
        for good in ["quell", "_q", "Quell2", long.as_str()] {
            assert!(Sql::new(good, true).is_ok(), "{good}");
        }
        let too_long = "s".repeat(41);
        for bad in ["", "1q", "q-x", "pg_q", "x\"; drop table y; --", "q.r", "ü", &too_long] {
            assert_eq!(Sql::new(bad, true).unwrap_err().field(), Some("schema"), "{bad}");
        }
    }

    #[test]
    fn texts_name_the_schema_quoted_and_channels_differ() {
        let sql = Sql::new("Apps", true).unwrap();
        assert_eq!(
            &*sql.text("select quell.peek($1) from quell.job"),
            "select \"Apps\".peek($1) from \"Apps\".job"
        );
        assert_ne!(sql.channel(), Sql::new("apps", true).unwrap().channel());
        assert!(sql.channel().len() < 63);
    }
}
