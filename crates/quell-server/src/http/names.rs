//! Pages of lists that are in the order of their names.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;

use super::error::ApiError;
use super::jobs::{Pairs, Parameters};

/// The largest page.
const MAX_PAGE: usize = 200;

/// Which names of a list are meant: all of them, unless a request says otherwise.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Only those with this text in them.
    part: Option<String>,
    /// Only those after this one.
    after: Option<String>,
    /// At most this many.
    limit: Option<usize>,
}

impl Names {
    /// Reads `name`, `after` and `limit`.
    pub(super) fn read(query: Result<Query<Pairs>, QueryRejection>) -> Result<Self, ApiError> {
        let mut query = Parameters::read(query)?;
        let (part, after) = (query.take("name", Ok)?, query.take("after", Ok)?);
        let limit = query.take_limit(MAX_PAGE)?;
        query.end()?;
        Ok(Names { part, after, limit })
    }

    /// The page of these, which are in order, and the name that leads to the next one.
    pub(super) fn page<T>(
        &self,
        all: impl IntoIterator<Item = T>,
        name: impl Fn(&T) -> &str,
    ) -> (Vec<T>, Option<String>) {
        let is_meant = |one: &T| {
            let name = name(one);
            self.part.as_ref().is_none_or(|part| name.contains(part.as_str()))
                && self.after.as_ref().is_none_or(|after| name > after.as_str())
        };
        let mut all = all.into_iter().filter(is_meant);
        let Some(limit) = self.limit else { return (all.collect(), None) };
        let page: Vec<T> = all.by_ref().take(limit).collect();
        let next = all.next().and_then(|_| page.last().map(|last| name(last).to_owned()));
        (page, next)
    }
}
