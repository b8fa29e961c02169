//! The pages within another application: below a prefix, read-only, with its own authentication.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, COOKIE, LOCATION};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use quell_ui::Page;
use tower::ServiceExt;

/// What an API was asked: method, path, headers.
type Asked = Arc<Mutex<Vec<(Method, Uri, HeaderMap)>>>;

/// The address of a caller, as an application keeps it.
#[derive(Clone)]
struct Address(&'static str);

/// An API with one task, which records what it is asked. It wants a bearer token, or the cookie `open`.
fn api(asked: &Asked) -> Router {
    let asked = asked.clone();
    Router::new().fallback(move |request: Request| {
        let asked = asked.clone();
        async move { answer(&asked, &request) }
    })
}

fn answer(asked: &Asked, request: &Request) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let mut headers = request.headers().clone();
    if let Some(Address(address)) = request.extensions().get() {
        headers.insert("address", HeaderValue::from_static(address));
    }
    let path = uri.path().to_owned();
    asked.lock().unwrap().push((method, uri, headers.clone()));
    let is_known = headers.contains_key(AUTHORIZATION)
        || headers.get(COOKIE).is_some_and(|cookie| cookie == "open=1");
    let text = match path.as_str() {
        _ if !is_known => return StatusCode::UNAUTHORIZED.into_response(),
        "/v1/session" => {
            r#"{"name":"ann","scopes":["operate","trigger"],"expires_at":"2126-01-01T00:00:00Z"}"#
        }
        "/v1/tasks" => r#"{"tasks":[{"name":"mail","paused":false}]}"#,
        "/v1/tasks/mail" | "/v1/tasks/mail/pause" => r#"{"name":"mail","paused":false}"#,
        "/v1/tasks/mail/windows" => r#"{"jobs":[],"next_before":null}"#,
        "/v1/counts" => r#"{"counts":[]}"#,
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    ([("content-type", "application/json")], text).into_response()
}

async fn ask(app: &Router, method: Method, path: &str) -> (StatusCode, HeaderMap, String) {
    let request = Request::builder().method(method).uri(path).header(COOKIE, "open=1");
    send(app, request.header("accept", "text/html").body(Body::empty()).unwrap()).await
}

async fn send(app: &Router, request: Request) -> (StatusCode, HeaderMap, String) {
    let (head, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
}

/// The addresses that a page links to or sends forms to.
fn links(page: &str) -> Vec<String> {
    let parts =
        [" href=\"", " src=\"", " action=\""].into_iter().flat_map(|name| page.split(name).skip(1));
    parts.map(|rest| rest.split('"').next().unwrap().replace("&#x2f;", "/")).collect()
}

#[tokio::test]
async fn below_a_prefix_every_link_has_it() {
    let asked = Asked::default();
    let nested = Router::new().nest("/ops", Page::new(api(&asked)).into_router());
    // As behind a proxy that removes it.
    let removed = Page::new(api(&asked)).prefix("/acme/ops/").into_router();
    for (app, below, prefix) in [(nested, "/ops", "/ops"), (removed, "", "/acme/ops")] {
        for path in ["/tasks", "/tasks/mail", "/nosuch"] {
            let (_, _, page) = ask(&app, Method::GET, &format!("{below}{path}")).await;
            let links = links(&page);
            assert!(links.len() > 5, "{page}");
            let own = links.iter().filter(|link| !link.starts_with('#'));
            let wrong: Vec<_> =
                own.filter(|link| !link.starts_with(&format!("{prefix}/"))).collect();
            assert!(wrong.is_empty(), "{wrong:?}");
            let styles = links.iter().find(|link| link.ends_with(".css")).unwrap();
            let styles = styles.replace(prefix, below);
            assert_eq!(ask(&app, Method::GET, &styles).await.0, StatusCode::OK, "{styles}");
        }
        let (status, headers, _) =
            ask(&app, Method::POST, &format!("{below}/tasks/mail/pause")).await;
        assert_eq!(status, StatusCode::SEE_OTHER);
        assert_eq!(headers[LOCATION], format!("{prefix}/tasks/mail?done=paused"));
    }
}

#[tokio::test]
async fn read_only_pages_have_no_forms_that_change_something_and_refuse_them() {
    let asked = Asked::default();
    let app = Page::new(api(&asked)).read_only().into_router();
    let (status, _, page) = ask(&app, Method::GET, "/tasks/mail").await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains("read-only") && !page.contains("method=\"post\""), "{page}");
    for path in
        ["/tasks/mail/pause", "/tasks/mail/resume", "/tasks/mail/trigger", "/tasks/mail/flush"]
    {
        asked.lock().unwrap().clear();
        let (status, _, page) = ask(&app, Method::POST, path).await;
        assert!(status.is_client_error(), "{path}: {status}");
        assert!(!page.contains("method=\"post\""), "{page}");
        let asked = asked.lock().unwrap();
        assert!(asked.iter().all(|(method, ..)| method == Method::GET), "{path}: {asked:?}");
    }
}

#[tokio::test]
async fn a_hook_admits_callers_and_gives_them_tokens() {
    let asked = Asked::default();
    let page = Page::new(api(&asked)).carry::<Address>().authenticate(|parts| {
        if !parts.headers.contains_key("x-user") {
            return Err(Box::new(
                (StatusCode::SEE_OTHER, [(LOCATION, "/sign-in")]).into_response(),
            ));
        }
        let token = HeaderValue::from_static("Bearer of-the-user");
        Ok(HeaderMap::from_iter([(AUTHORIZATION, token)]))
    });
    let app = page.into_router();
    let (status, headers, _) = ask(&app, Method::GET, "/tasks").await;
    assert_eq!(
        (status, &headers[LOCATION]),
        (StatusCode::SEE_OTHER, &HeaderValue::from_static("/sign-in"))
    );
    assert!(asked.lock().unwrap().is_empty(), "the API was asked for a stranger");
    let mut request = Request::builder().uri("/tasks").body(Body::empty()).unwrap();
    let headers = request.headers_mut();
    for (name, value) in [
        ("x-user", "ann"),
        ("authorization", "Bearer own"),
        ("accept-language", "de"),
        ("accept-encoding", "gzip"),
        ("origin", "http://a.test"),
        ("x-forwarded-for", "192.0.2.7"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    request.extensions_mut().insert(Address("192.0.2.1"));
    assert_eq!(send(&app, request).await.0, StatusCode::OK);
    let asked = asked.lock().unwrap();
    assert!(!asked.is_empty());
    for (_, uri, headers) in &*asked {
        assert_eq!(headers[AUTHORIZATION], "Bearer of-the-user", "{uri}");
        assert_eq!(headers["address"], "192.0.2.1", "{uri}");
        assert_eq!(
            (&headers["origin"], &headers["x-forwarded-for"]),
            (&HeaderValue::from_static("http://a.test"), &HeaderValue::from_static("192.0.2.7"))
        );
        assert!(
            !headers.contains_key("accept-language") && !headers.contains_key("accept-encoding")
        );
    }
}

#[tokio::test]
async fn forms_of_other_sites_are_refused_whatever_a_hook_adds() {
    let asked = Asked::default();
    let app = Page::new(api(&asked)).authenticate(|_| {
        let token = HeaderValue::from_static("Bearer of-the-user");
        Ok(HeaderMap::from_iter([(AUTHORIZATION, token)]))
    });
    let app = app.into_router();
    let post = async |headers: &[(&'static str, &'static str)]| {
        let mut request = Request::post("/jobs/7/cancel").header("host", "ops.test");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        send(&app, request.body(Body::empty()).unwrap()).await.0
    };
    for foreign in [
        ("origin", "https://evil.test"),
        ("origin", "null"),
        ("origin", "https://ops.test.evil.test"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        assert_eq!(post(&[foreign]).await, StatusCode::FORBIDDEN, "{foreign:?}");
    }
    assert!(asked.lock().unwrap().is_empty(), "the API was asked for another site");
    for own in [("origin", "https://ops.test"), ("sec-fetch-site", "same-origin")] {
        assert_ne!(post(&[own]).await, StatusCode::FORBIDDEN, "{own:?}");
    }
    assert!(!asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_form_with_a_million_fields_is_read_no_further_than_its_first_ones() {
    let app = Page::new(api(&Asked::default())).into_router();
    let body = "a&".repeat(1_000_000);
    let request = Request::post("/tasks/mail/trigger")
        .header("content-type", "application/x-www-form-urlencoded")
        .header(COOKIE, "open=1")
        .body(Body::from(body))
        .unwrap();
    let (status, _, page) = send(&app, request).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{page}");
}

#[tokio::test]
async fn without_a_session_the_browser_goes_to_the_login_and_back() {
    let page = Page::new(api(&Asked::default())).login("/sign-in").logout("/sign-out");
    let app = Router::new().nest("/ops", page.into_router());
    for (method, path, next) in [
        (Method::GET, "/ops/tasks", "%2Fops%2Ftasks"),
        (
            Method::GET,
            "/ops/jobs?task=a%20b&state=dead",
            "%2Fops%2Fjobs%3Ftask%3Da%2520b%26state%3Ddead",
        ),
        (Method::POST, "/ops/tasks/mail/pause", "%2Fops%2Ftasks%2Fmail"),
        (Method::GET, "/ops/tasks/a%2F%2Fevil.test", "%2F"),
    ] {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let (status, headers, _) = send(&app, request).await;
        assert_eq!(status, StatusCode::SEE_OTHER, "{path}");
        assert_eq!(headers[LOCATION], format!("/sign-in?next={next}"), "{path}");
    }
}

#[tokio::test]
async fn pages_without_a_login_link_to_none_and_say_who_is_not_logged_in() {
    let own = Router::new().nest("/ops", Page::new(api(&Asked::default())).into_router());
    let page = Page::new(api(&Asked::default())).login("/sign-in").logout("/sign-out");
    let set = Router::new().nest("/ops", page.into_router());
    let request = Request::get("/ops/tasks").body(Body::empty()).unwrap();
    let (status, headers, shown) = send(&own, request).await;
    assert_eq!((status, headers.get(LOCATION)), (StatusCode::UNAUTHORIZED, None));
    assert!(shown.contains("Not logged in"), "{shown}");
    let (_, _, shown) = ask(&own, Method::GET, "/ops/tasks").await;
    assert!(!links(&shown).iter().any(|link| link.contains("/log")), "{shown}");
    let (_, _, shown) = ask(&set, Method::GET, "/ops/tasks").await;
    assert!(links(&shown).contains(&"/sign-out".to_owned()), "{shown}");
}

#[tokio::test]
async fn an_api_that_fails_is_a_page_that_says_so() {
    let gone = Router::new().fallback(|| async { StatusCode::SERVICE_UNAVAILABLE });
    let app = Page::new(gone).into_router();
    let (status, headers, page) = ask(&app, Method::GET, "/tasks").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(page.contains("role=\"alert\""), "{page}");
    assert!(headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    let garbled = Router::new().fallback(|| async { "<html>" });
    let app = Page::new(garbled).into_router();
    assert_eq!(ask(&app, Method::GET, "/tasks").await.0, StatusCode::BAD_GATEWAY);
}

#[tokio::test]
async fn files_are_kept_for_good_and_compressed_where_that_is_accepted() {
    let app = Page::new(api(&Asked::default())).into_router();
    let (_, headers, page) = ask(&app, Method::GET, "/tasks").await;
    assert_eq!(headers["cache-control"], "no-store");
    // The icon is there twice: beside the title, and in the page.
    let files: std::collections::BTreeSet<_> =
        links(&page).into_iter().filter(|link| link.starts_with("/assets/")).collect();
    assert_eq!(files.len(), 3, "{files:?}");
    for file in files {
        let get = |headers: &[(&'static str, String)]| {
            let request = Request::builder().uri(&file);
            let request =
                headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
            app.clone().oneshot(request.body(Body::empty()).unwrap())
        };
        let plain = get(&[]).await.unwrap();
        assert_eq!(plain.headers()["cache-control"], "public, max-age=31536000, immutable");
        assert!(!plain.headers().contains_key("content-encoding"));
        let small = get(&[("accept-encoding", "br, gzip".to_owned())]).await.unwrap();
        assert_eq!(small.headers()["content-encoding"], "gzip");
        let tag = small.headers()["etag"].to_str().unwrap().to_owned();
        assert!(tag.starts_with('"') && plain.headers()["etag"] != tag.as_str(), "{tag}");
        let again = [("accept-encoding", "gzip".to_owned()), ("if-none-match", tag)];
        assert_eq!(get(&again).await.unwrap().status(), StatusCode::NOT_MODIFIED);
        let sizes = [plain, small].map(|answer| to_bytes(answer.into_body(), 1 << 20));
        let [plain, small] = sizes;
        assert!(small.await.unwrap().len() < plain.await.unwrap().len(), "{file}");
    }
    assert_eq!(ask(&app, Method::GET, "/assets/page.js").await.0, StatusCode::NOT_FOUND);
}
