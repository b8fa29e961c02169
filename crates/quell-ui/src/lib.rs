//! Pages for operators of Quell: jobs, tasks, queues, schedules and what else its HTTP API has.
//!
//! [`Page`] makes an axum `Router` over the API. Each page asks the API in this process, with the headers of the
//! request that it answers. So logins, scopes, limits, redaction and the audit are the API's own.
//!
//! ```
//! use axum::Router;
//! use axum::http::StatusCode;
//! use quell_ui::Page;
//!
//! // The API: the router of a server, or a client of one elsewhere.
//! let api: Router = Router::new().fallback(|| async { StatusCode::SERVICE_UNAVAILABLE });
//! let app: Router = Router::new().nest("/ops", Page::new(api).into_router());
//! ```
//!
//! - `site` has what all requests share, `visit` what one request is: its caller, its session, its links.
//! - `answer` makes pages and refusals, `view` renders templates, and `assets` has the script and the styles.
//! - `pages` has a module for each group of paths.
//!
//! Invariant: it knows nothing of Quell but the API, and no value of the API is HTML.

mod answer;
mod api;
mod assets;
mod form;
mod json;
mod pages;
mod site;
mod text;
mod view;
mod visit;

pub use site::Page;

/// The icon, an SVG image: for a page of its own, such as a login.
pub const ICON: &str = include_str!("../assets/icon.svg");

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
