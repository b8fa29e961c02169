//! The fields of a query or a form.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use crate::site::Site;
use crate::text::encode;

/// The most fields that are read.
const MOST_FIELDS: usize = 64;
/// Fields whose spaces count.
const KEYS: [&str; 4] = ["key", "partition", "idempotency_key", "dedup_key"];

/// Fields in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    /// The first fields of a text: no form here has more.
    pub(crate) fn parse(text: &[u8]) -> Self {
        Fields(form_urlencoded::parse(text).into_owned().take(MOST_FIELDS).collect())
    }

    /// The value of a field that was filled in.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }

    /// The value of a field as it was sent.
    pub(crate) fn whole(&self, name: &str) -> &str {
        self.0.iter().find(|(given, _)| given == name).map_or("", |(_, value)| value)
    }

    /// Those of some names that were filled in.
    pub(crate) fn only(&self, names: &[&str]) -> Self {
        let value = |name: &&str| {
            let trimmed = self.get(name)?;
            let value = if KEYS.contains(name) { self.whole(name) } else { trimmed };
            Some(((*name).to_owned(), value.to_owned()))
        };
        Fields(names.iter().filter_map(value).collect())
    }

    /// The same without those of some names.
    pub(crate) fn without(&self, names: &[&str]) -> Self {
        let kept = self.0.iter().filter(|(name, _)| !names.contains(&name.as_str()));
        Fields(kept.cloned().collect())
    }

    /// These and others.
    pub(crate) fn and(mut self, others: &Fields) -> Self {
        self.0.extend(others.0.iter().cloned());
        self
    }

    /// The same with another field.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.0.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The fields as a query.
    pub(crate) fn encode(&self) -> String {
        let pairs = self.pairs().map(|(name, value)| format!("{}={}", encode(name), encode(value)));
        pairs.collect::<Vec<_>>().join("&")
    }
}

/// The fields of a form that was sent.
pub(crate) struct Form(pub(crate) Fields);

impl FromRequest<Site> for Form {
    type Rejection = Response;

    async fn from_request(request: Request, site: &Site) -> Result<Self, Response> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        let is_empty = kind.is_empty();
        if !is_empty && !kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            return Err(StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response());
        }
        let bytes = Bytes::from_request(request, site).await;
        let bytes = bytes.map_err(IntoResponse::into_response)?;
        Ok(Form(Fields::parse(&bytes)))
    }
}
