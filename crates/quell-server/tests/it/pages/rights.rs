//! Each page with and without rights.

use reqwest::Method;
use serde_json::json;

use super::{Scene, shown};

/// The pages of lists, and the scope that each needs.
const LISTS: [(&str, &str); 15] = [
    ("/", "read"),
    ("/timeline?task=build", "read"),
    ("/what-if?task=build", "read"),
    ("/proof", "read"),
    ("/jobs", "read"),
    ("/tasks", "read"),
    ("/queues", "read"),
    ("/dead", "read"),
    ("/schedules", "read"),
    ("/workers", "read"),
    ("/sources", "read"),
    ("/actions", "read"),
    ("/triggers", "read"),
    ("/settings", "read"),
    ("/audit", "admin"),
];

/// Which scopes permit what a page needs.
fn permits(scope: &str, needs: &str) -> bool {
    scope == "admin" || (needs == "read" && matches!(scope, "read" | "payload" | "operate"))
}

#[tokio::test]
async fn each_page_is_for_the_scopes_that_the_api_asks_for() {
    let scene = Scene::new().await;
    let job = scene.trigger("build", &json!({ "repo": "a" })).await;
    let job = format!("/jobs/{job}");
    let pages = [&job, "/tasks/build", "/queues/default", "/schedules/nightly"];
    let pages = pages.map(|path| (path, "read"));
    for (path, needs) in LISTS.into_iter().chain(pages) {
        let stranger = scene.page("none", path).await;
        assert_eq!(stranger.status, 303, "{path}");
        let next: String = form_urlencoded::byte_serialize(path.as_bytes()).collect();
        assert_eq!(stranger.location(), format!("/login?next={next}"));
        for scope in ["read", "payload", "operate", "admin", "trigger"] {
            let shown = scene.page(scope, path).await;
            let expected = if permits(scope, needs) { 200 } else { 403 };
            assert_eq!(shown.status, expected, "{scope} {path}: {}", shown.page.text());
            if expected == 403 {
                let text = shown.page.text();
                assert!(text.contains(&format!("the scope {needs}")), "{scope} {path}: {text}");
            }
        }
    }
    scene.stop().await;
}

#[tokio::test]
async fn a_page_has_only_the_controls_that_its_caller_may_use_and_names_the_others_scope() {
    let scene = Scene::new().await;
    let job = scene.trigger("build", &json!({ "repo": "a" })).await;
    let job = format!("/jobs/{job}");
    for (path, control, needs) in [
        (job.as_str(), "run", "operate"),
        (&job, "cancel", "operate"),
        (&job, "priority", "operate"),
        ("/tasks/build", "pause", "operate"),
        ("/tasks/build", "flush", "operate"),
        ("/tasks/build", "trigger", "trigger"),
        ("/queues/default", "pause", "operate"),
        ("/queues/default", "review", "admin"),
        ("/schedules/nightly", "run", "operate"),
        ("/actions/new?state=dead", "begin", "operate"),
    ] {
        for scope in ["read", "operate", "admin"] {
            let shown = scene.page(scope, path).await;
            let may = scope == needs || scope == "admin";
            assert_eq!(shown.page.does(control), may, "{scope} {path} {control}");
            assert!(may || shown.page.lacks().contains(&needs), "{scope} {path} {control}");
        }
    }
    // Payloads, and the entry of the audit.
    assert!(scene.page("payload", &job).await.page.by_id("payload").is_some());
    assert!(scene.page("operate", &job).await.page.lacks().contains(&"payload"));
    let nav = |page: &super::Page| page.links().any(|link| link == "/audit");
    assert!(nav(&scene.page("admin", "/jobs").await.page));
    assert!(!nav(&scene.page("operate", "/jobs").await.page));
    scene.stop().await;
}

#[tokio::test]
async fn forms_are_refused_without_their_scope_and_from_other_sites() {
    let scene = Scene::new().await;
    let job = scene.trigger("build", &json!({ "repo": "a" })).await;
    let paths = [
        format!("/jobs/{job}/cancel"),
        format!("/jobs/{job}/run"),
        "/tasks/build/pause".to_owned(),
        "/queues/default/pause".to_owned(),
        "/schedules/nightly/run".to_owned(),
    ];
    for path in &paths {
        assert_eq!(scene.send("read", path, &[]).await.status, 403, "{path}");
        let stranger = scene.send("none", path, &[]).await;
        let page = path.rsplit_once('/').unwrap().0;
        let next: String = form_urlencoded::byte_serialize(page.as_bytes()).collect();
        assert_eq!((stranger.status, stranger.location()), (303, &*format!("/login?next={next}")));
    }
    let login = scene.request("none", Method::POST, "/v1/session");
    let login = login.header("content-type", "application/json");
    let body = json!({ "token": scene.shown["admin"] }).to_string();
    let login = login.body(body).send().await.unwrap();
    let cookie = login.headers()["set-cookie"].to_str().unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let with_cookie = |site: &'static str| {
        let request = scene.request("none", Method::POST, "/tasks/build/pause");
        shown(request.header("cookie", &cookie).header("sec-fetch-site", site))
    };
    let refused = with_cookie("cross-site").await;
    assert_eq!(refused.status, 403, "{}", refused.page.text());
    assert_eq!(scene.get("/v1/tasks/build").await["paused"], false);
    assert_eq!(scene.state(&job).await, "scheduled");
    let taken = with_cookie("same-origin").await;
    assert_eq!((taken.status, taken.location()), (303, "/tasks/build?done=paused"));
    let task = scene.get("/v1/tasks/build").await;
    assert_eq!((&task["paused"], &task["paused_by"]), (&json!(true), &json!("admin")));
    // What a page does is recorded as what the API does, with the caller's own address.
    let audit = scene.get("/v1/audit").await;
    let mut entries = audit["entries"].as_array().unwrap().iter();
    let entry =
        entries.find(|entry| entry["path"] == "/v1/tasks/build/pause" && entry["status"] == 200);
    let by = &entry.unwrap()["by"];
    assert_eq!((&by["name"], &by["peer"]), (&json!("admin"), &json!("127.0.0.1")));
    // The session is shown, with its end.
    let own = scene.request("none", Method::GET, "/jobs").header("cookie", &cookie);
    assert!(shown(own).await.page.by_id("logout").is_some());
    scene.stop().await;
}

#[tokio::test]
async fn a_limited_token_sees_pages_of_its_tasks_only() {
    let mut scene = Scene::new().await;
    scene.add("limited", &["operate"], &["build"]).await;
    let own = scene.trigger("build", &json!({ "repo": "a" })).await;
    let other = scene.trigger("pulled", &json!(1)).await;
    assert_eq!(scene.page("limited", &format!("/jobs/{own}")).await.status, 200);
    assert_eq!(scene.page("limited", &format!("/jobs/{other}")).await.status, 404);
    assert_eq!(scene.page("limited", "/workers").await.status, 403);
    let tasks = scene.page("limited", "/tasks").await;
    assert!(tasks.page.text().contains("build") && !tasks.page.text().contains("pulled"));
    assert_eq!(scene.send("limited", &format!("/jobs/{other}/cancel"), &[]).await.status, 404);
    scene.stop().await;
}

#[tokio::test]
async fn who_asks_for_no_html_gets_the_index_of_the_api() {
    let scene = Scene::new().await;
    let index = scene.served.get("/").await;
    assert_eq!((index.0, &index.1["name"]), (200, &json!("quell")));
    let people = scene.page("admin", "/").await;
    assert!(matches!(people.status, 200 | 303), "{}", people.status);
    scene.stop().await;
}

/// Looking at pages asks for nothing that the caller may not see: a refusal would be on record.
#[tokio::test]
async fn pages_of_a_limited_caller_leave_no_refusal_in_the_audit() {
    let mut scene = Scene::new().await;
    scene.add("limited", &["admin"], &["build"]).await;
    for path in ["/settings", "/queues/default", "/dead", "/proof", "/queues", "/tasks"] {
        let shown = scene.page("limited", path).await;
        assert_eq!(shown.status, 200, "{path}: {}", shown.page.text());
    }
    let audit = scene.get("/v1/audit?limit=200").await;
    let refused =
        audit["entries"].as_array().unwrap().iter().filter(|entry| entry["status"] == 403);
    assert_eq!(refused.count(), 0, "{audit}");
    scene.stop().await;
}
