//! The script, the styles and the icon: parts of the program, each under an address that changes with its text.

use std::io::Write;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use minijinja::context;
use minijinja::value::Value;
use sha2::{Digest, Sha256};

use crate::site::Site;

/// How many characters of the digest an address has.
const MARK: usize = 12;

/// The files.
#[derive(Debug)]
pub(crate) struct Assets {
    script: Asset,
    styles: Asset,
    icon: Asset,
}

/// A file in memory.
#[derive(Debug)]
struct Asset {
    name: String,
    kind: &'static str,
    mark: String,
    text: &'static str,
    compressed: Bytes,
}

impl Asset {
    fn new(name: &str, ending: &str, kind: &'static str, text: &'static str) -> Self {
        let digest = Sha256::digest(text);
        let mark: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let mark = mark.chars().take(MARK).collect::<String>();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let written = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
        let name = format!("{name}-{mark}.{ending}");
        Asset { name, kind, mark, text, compressed: written.unwrap_or_default().into() }
    }

    fn answer(&self, headers: &HeaderMap) -> Response {
        let accepts = |name: HeaderName, word: &str| {
            let values = headers.get_all(name);
            values.iter().filter_map(|value| value.to_str().ok()).any(|value| value.contains(word))
        };
        let is_small = accepts(ACCEPT_ENCODING, "gzip") && !self.compressed.is_empty();
        let ending = if is_small { "-gzip" } else { "" };
        let tag = format!("\"{}{ending}\"", self.mark);
        let kept = [
            (ETAG, HeaderValue::from_str(&tag).unwrap_or(HeaderValue::from_static("\"\""))),
            (VARY, HeaderValue::from_static("accept-encoding")),
            (CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
        ];
        if accepts(IF_NONE_MATCH, &tag) {
            return (StatusCode::NOT_MODIFIED, kept).into_response();
        }
        let kind = [(CONTENT_TYPE, self.kind)];
        if is_small {
            let encoding = [(CONTENT_ENCODING, "gzip")];
            return (kept, kind, encoding, self.compressed.clone()).into_response();
        }
        (kept, kind, self.text).into_response()
    }
}

impl Assets {
    pub(crate) fn new() -> Self {
        let script = concat!(
            include_str!("../assets/page.js"),
            include_str!("../assets/live.js"),
            include_str!("../assets/fresh.js"),
            include_str!("../assets/timeline.js"),
            include_str!("../assets/what-if.js"),
        );
        let styles =
            concat!(include_str!("../assets/page.css"), include_str!("../assets/overview.css"),);
        let icon = crate::ICON;
        Assets {
            script: Asset::new("page", "js", "text/javascript; charset=utf-8", script),
            styles: Asset::new("page", "css", "text/css; charset=utf-8", styles),
            icon: Asset::new("icon", "svg", "image/svg+xml", icon),
        }
    }

    /// Their names, for templates.
    pub(crate) fn links(&self) -> Value {
        let Assets { script, styles, icon } = self;
        context! {
            script => script.name.as_str(), styles => styles.name.as_str(), icon => icon.name.as_str(),
        }
    }
}

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/assets/{file}", get(file))
}

/// `GET /assets/{file}`.
async fn file(State(site): State<Site>, Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Assets { script, styles, icon } = &*site.assets;
    let found = [script, styles, icon].into_iter().find(|asset| asset.name == name);
    found.map_or_else(|| StatusCode::NOT_FOUND.into_response(), |asset| asset.answer(&headers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_and_styles_are_small() {
        let Assets { script, styles, icon } = Assets::new();
        let sizes = [&script, &styles, &icon].map(|asset| asset.compressed.len());
        assert!(
            sizes.iter().all(|size| *size > 0) && sizes.iter().sum::<usize>() < 150_000,
            "{sizes:?}"
        );
    }
}
