//! What all requests share: the API, the hook, the files.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, Request};
use axum::middleware::from_fn;
use axum::response::Response;
use tower::Service;
use tower::util::BoxCloneSyncService;

use crate::assets::Assets;
use crate::view::Views;
use crate::{answer, assets, pages};

/// The largest form: an edited payload of 8 MiB, whose escapes take up to three times as much.
const MAX_FORM: usize = 24 << 20;

/// What stands for the id of a trace in an address.
const TRACE_ID: &str = "{trace_id}";

pub(crate) type Api = BoxCloneSyncService<Request<Body>, Response, Infallible>;
type Hook = Arc<dyn Fn(&Parts) -> Result<HeaderMap, Box<Response>> + Send + Sync>;
type Carry = fn(&Extensions, &mut Extensions);

/// The pages over an API.
#[derive(Clone)]
pub struct Page {
    site: Settings,
}

#[derive(Clone)]
struct Settings {
    api: Api,
    read_only: bool,
    prefix: Option<String>,
    hook: Option<Hook>,
    carried: Vec<Carry>,
    traces: Option<String>,
    login: Option<String>,
    logout: Option<String>,
}

impl Page {
    /// Pages over an API: an axum router of it, or a client of a server elsewhere.
    #[must_use]
    pub fn new<S>(api: S) -> Self
    where
        S: Service<Request<Body>, Response = Response, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        let api = Api::new(api);
        let (read_only, carried) = (false, Vec::new());
        let (prefix, hook, traces, login, logout) = (None, None, None, None, None);
        let site = Settings { api, read_only, prefix, hook, carried, traces, login, logout };
        Page { site }
    }

    /// Shows no form that changes something, and refuses such requests with 403.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.site.read_only = true;
        self
    }

    /// The path below which browsers reach the pages, such as `/ops`, where a proxy removes it. The path of
    /// [`Router::nest`] is known without it, and may have no parameters.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        self.site.prefix = Some(prefix.trim_end_matches('/').to_owned());
        self
    }

    /// Where browsers log in, such as `/login`: a path or an address, which gets the parameter `next` with the
    /// path to go on to. Without one, who is not logged in gets a page that says so.
    #[must_use]
    pub fn login(mut self, url: impl Into<String>) -> Self {
        self.site.login = Some(url.into());
        self
    }

    /// Where browsers log out, such as `/logout`, by a POST. Without one, pages have no button for it.
    #[must_use]
    pub fn logout(mut self, url: impl Into<String>) -> Self {
        self.site.logout = Some(url.into());
        self
    }

    /// Looks at each request before its page does. The headers that the hook returns replace those of the same
    /// name, such as `Authorization` with a token of the API. Its response, such as a redirect to a login, is
    /// the answer in place of the page.
    ///
    /// A look-up that waits belongs in a middleware before, which leaves its result in the request's extensions.
    #[must_use]
    pub fn authenticate<F>(mut self, hook: F) -> Self
    where
        F: Fn(&Parts) -> Result<HeaderMap, Box<Response>> + Send + Sync + 'static,
    {
        self.site.hook = Some(Arc::new(hook));
        self
    }

    /// Passes the extension of this type on to the API with each request, such as the address of the caller.
    #[must_use]
    pub fn carry<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        self.site.carried.push(|from, to| {
            if let Some(value) = from.get::<T>() {
                to.insert(value.clone());
            }
        });
        self
    }

    /// Links the traces of a job to where they are shown: an address of http or https with `{trace_id}` in it.
    /// Other addresses are left out.
    #[must_use]
    pub fn traces(mut self, url: impl Into<String>) -> Self {
        let url = url.into();
        let is_fine = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
        self.site.traces = Some(url).filter(|url| is_fine && url.contains(TRACE_ID));
        self
    }

    /// The router of the pages, which answers with a page to unknown paths, too.
    pub fn into_router(self) -> Router {
        let assets = Assets::new();
        let views = Views::new(&assets);
        let site = Site { views: Arc::new(views), assets: Arc::new(assets), settings: self.site };
        pages::routes()
            .merge(assets::routes())
            .fallback(pages::unknown)
            .method_not_allowed_fallback(pages::wrong_method)
            .layer(DefaultBodyLimit::max(MAX_FORM))
            .layer(from_fn(answer::protect))
            .with_state(site)
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { read_only, prefix, hook, carried, .. } = &self.site;
        f.debug_struct("Page")
            .field("read_only", read_only)
            .field("prefix", prefix)
            .field("has_hook", &hook.is_some())
            .field("carried", &carried.len())
            .finish_non_exhaustive()
    }
}

/// The state of all routes.
#[derive(Clone)]
pub(crate) struct Site {
    settings: Settings,
    pub(crate) views: Arc<Views>,
    pub(crate) assets: Arc<Assets>,
}

impl Site {
    pub(crate) fn api(&self) -> Api {
        self.settings.api.clone()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.settings.read_only
    }

    /// The path below which the pages are, where it is given.
    pub(crate) fn given_prefix(&self) -> Option<&str> {
        self.settings.prefix.as_deref()
    }

    /// Where browsers log in.
    pub(crate) fn login(&self) -> Option<&str> {
        self.settings.login.as_deref()
    }

    /// Where browsers log out.
    pub(crate) fn logout(&self) -> Option<&str> {
        self.settings.logout.as_deref()
    }

    /// Where a trace is shown.
    pub(crate) fn trace_url(&self, id: &str) -> Option<String> {
        let url = self.settings.traces.as_ref()?;
        Some(url.replace(TRACE_ID, &crate::text::encode(id)))
    }

    /// What the hook says of a request.
    pub(crate) fn admit(&self, parts: &Parts) -> Result<HeaderMap, Box<Response>> {
        self.settings.hook.as_ref().map_or_else(|| Ok(HeaderMap::new()), |hook| hook(parts))
    }

    /// The extensions that go on to the API.
    pub(crate) fn carried(&self, from: &Extensions) -> Extensions {
        let mut to = Extensions::new();
        self.settings.carried.iter().for_each(|carry| carry(from, &mut to));
        to
    }
}
