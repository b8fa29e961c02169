//! The forms of jobs, tasks and triggers do what they say.

use quell::JobState;
use serde_json::json;

use super::Scene;

#[tokio::test]
async fn a_task_is_triggered_paused_and_resumed_by_its_page() {
    let scene = Scene::new().await;
    // A number that no program keeps goes on as it is.
    let payload = r#"{"repo": "a", "n": 12345678901234567890.10, "t": "é\u0041"}"#;
    let fields = [
        ("payload", payload),
        ("priority", "7"),
        ("delay", ""),
        ("dedup", " "),
        ("partition", "p"),
    ];
    let location = scene.done("/tasks/build/trigger", &fields).await;
    let job = location.strip_prefix("/jobs/").unwrap().strip_suffix("?done=accepted").unwrap();
    let shown = scene.page("admin", &location).await;
    assert!(shown.page.text().contains("The trigger is accepted."));
    let raw = scene.request("admin", reqwest::Method::GET, &format!("/v1/jobs/{job}"));
    let raw = raw.send().await.unwrap().text().await.unwrap();
    assert!(raw.contains(payload), "{raw}");
    let found = scene.get(&format!("/v1/explain?id={job}.1")).await;
    assert_eq!((&found["job"]["priority"], &found["job"]["partition"]), (&json!(7), &json!("p")));
    let again = scene.done("/tasks/build/trigger", &[("payload", r#"{"repo":"a"}"#)]).await;
    assert_eq!(again, format!("/jobs/{job}?done=debounced"));
    for (wrong, status) in [("{", 422), ("", 422), (r#"{"repo":"a"}"#, 303)] {
        let shown = scene.send("admin", "/tasks/build/trigger", &[("payload", wrong)]).await;
        assert_eq!(shown.status, status, "{wrong}: {}", shown.page.text());
    }
    let wrong = [("payload", "1"), ("priority", "high")];
    assert_eq!(scene.send("admin", "/tasks/build/trigger", &wrong).await.status, 422);
    for (what, paused) in [("pause", true), ("resume", false)] {
        scene.done(&format!("/tasks/build/{what}"), &[]).await;
        let task = scene.get("/v1/tasks/build").await;
        assert_eq!(task["paused"], paused);
        let shown = scene.page("admin", "/tasks/build").await;
        assert!(shown.page.does(if paused { "resume" } else { "pause" }));
    }
    scene.stop().await;
}

#[tokio::test]
async fn queues_and_tasks_are_paged_by_name_and_searched() {
    let scene = Scene::new().await;
    for number in 0..60 {
        let path = format!("/v1/queues/many-{number:02}");
        let (status, reply) = scene
            .api("admin", reqwest::Method::PUT, &path, Some(json!({ "concurrency": 1 })))
            .await;
        assert_eq!(status, 200, "{reply}");
    }
    let rows = |page: &super::Page| -> Vec<String> {
        let names = page.tags("tr").filter_map(|tag| tag.get("data-queue"));
        names.map(str::to_owned).collect()
    };
    let first = scene.page("read", "/queues?name=many").await.page;
    assert_eq!(rows(&first).len(), 50);
    let next = first.by_id("next").unwrap().get("href").unwrap().to_owned();
    let second = scene.page("read", &next).await.page;
    assert_eq!(rows(&second), (50..60).map(|n| format!("many-{n}")).collect::<Vec<_>>());
    assert!(second.by_id("next").is_none());
    assert_eq!(rows(&scene.page("read", "/queues?name=many-07").await.page), ["many-07"]);
    assert!(scene.page("read", "/queues?name=none").await.page.by_id("none").is_some());
    let tasks = scene.page("read", "/tasks?name=uil").await.page;
    let tasks: Vec<_> = tasks.tags("tr").filter_map(|tag| tag.get("data-task")).collect();
    assert_eq!(tasks, ["build"]);
    let page = scene.get("/v1/tasks?limit=2").await;
    let after = page["next_after"].as_str().unwrap();
    assert_eq!(page["tasks"][1]["name"], after);
    let rest = scene.get(&format!("/v1/tasks?after={after}")).await;
    let all = scene.get("/v1/tasks").await["tasks"].as_array().unwrap().len();
    assert_eq!(rest["tasks"].as_array().unwrap().len(), all - 2);
    scene.stop().await;
}

/// Where a form goes, what is typed, and which field is refused, by its name and its id.
type Refused<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str, &'a str);

/// What was typed is there again, with the reason at its field.
#[tokio::test]
async fn a_refused_form_is_shown_again_with_what_was_typed() {
    let scene = Scene::new().await;
    let filter = [("state", "dead"), ("task", "dies"), ("action", "discard")];
    let cases: [Refused<'_>; 7] = [
        (
            "/tasks/build/trigger",
            &[("payload", "{ \"a\":"), ("delay", "7m")],
            "payload",
            "t-payload",
        ),
        (
            "/tasks/build/trigger",
            &[("payload", "{}"), ("priority", "high")],
            "priority",
            "t-priority",
        ),
        (
            "/tasks/build/trigger",
            &[("payload", r#"{"repo":"x"}"#), ("delay", "soon")],
            "delay",
            "t-delay",
        ),
        (
            "/queues/default/review",
            &[("concurrency", "many"), ("rate", "5/1m")],
            "concurrency",
            "q-concurrency",
        ),
        (
            "/queues/default/save",
            &[("concurrency", "2"), ("worker_concurrency", "3")],
            "worker_concurrency",
            "q-worker_concurrency",
        ),
        ("/actions/new", &[("name", "a"), ("rate", "fast")], "rate", "a-rate"),
        (
            "/actions/new",
            &[("name", "no such name!"), ("reason", "typed before")],
            "name",
            "a-name",
        ),
    ];
    for (path, typed, field, id) in cases {
        let mut fields = typed.to_vec();
        if path.starts_with("/actions") {
            fields.extend(filter);
        }
        if path.ends_with("/save") {
            fields.push(("tag", "*"));
        }
        let shown = scene.send("admin", path, &fields).await;
        assert_eq!(shown.status, 422, "{path}: {}", shown.page.text());
        assert!(shown.page.by_id("problem").is_some(), "{path}: {}", shown.page.text());
        let own = shown.page.by_id(id).unwrap();
        assert_eq!(own.get("aria-describedby"), Some("problem"), "{path} {field}");
        for (name, value) in typed {
            let mut all = shown.page.tags("input");
            let again =
                all.any(|tag| tag.get("name") == Some(name) && tag.get("value") == Some(value));
            assert!(again || shown.page.text().contains(value), "{path}: {name}={value} is lost");
        }
    }
    scene.stop().await;
}

#[tokio::test]
async fn r15_a_window_is_flushed_or_cancelled_by_the_page_of_its_task() {
    let scene = Scene::new().await;
    let flushed = scene.trigger("build", &json!({ "repo": "a & b" })).await;
    let cancelled = scene.trigger("build", &json!({ "repo": "c" })).await;
    let page = scene.page("admin", "/tasks/build").await.page;
    let keys = page.tags("input").filter(|tag| tag.get("name") == Some("key"));
    let keys: Vec<_> = keys.filter_map(|tag| tag.get("value")).collect();
    assert!(keys.contains(&"a & b"), "{keys:?}");
    scene.done("/tasks/build/flush", &[("key", "a & b")]).await;
    scene.served.ended_by_number(&flushed, JobState::Succeeded).await;
    scene.done("/tasks/build/cancel", &[("key", "c")]).await;
    assert_eq!(scene.state(&cancelled).await, "cancelled");
    assert_eq!(scene.send("admin", "/tasks/build/flush", &[("key", "none")]).await.status, 404);
    scene.stop().await;
}

/// A job that failed waits beside the open window of its key: the row that is cancelled is the one that was meant.
#[tokio::test]
async fn r15_a_row_of_a_closed_window_is_cancelled_and_not_the_open_one_of_its_key() {
    let scene = Scene::new().await;
    let open = scene.trigger("build", &json!({ "repo": "a" })).await;
    let other = scene.trigger("build", &json!({ "repo": "b" })).await;
    scene.done("/tasks/build/cancel", &[("key", "a"), ("job", &other)]).await;
    assert_eq!(scene.state(&other).await, "cancelled");
    assert_eq!(scene.state(&open).await, "scheduled");
    let page = scene.page("admin", "/tasks/build").await.page;
    let mut jobs = page.tags("input").filter(|tag| tag.get("name") == Some("job"));
    assert!(jobs.all(|tag| tag.get("value") == Some(open.as_str())), "{}", page.text());
    scene.stop().await;
}

#[tokio::test]
async fn a_job_is_run_now_changed_and_cancelled_by_its_page() {
    let scene = Scene::new().await;
    let job = scene.trigger("build", &json!({ "repo": "a" })).await;
    let page = format!("/jobs/{job}");
    let shown = scene.page("admin", &page).await.page;
    assert!(shown.by_id("waiting").is_some(), "why it waits: {}", shown.text());
    scene.done(&format!("{page}/priority"), &[("priority", "-5")]).await;
    assert_eq!(scene.get(&format!("/v1/jobs/{job}")).await["job"]["priority"], -5);
    scene.done(&format!("{page}/run"), &[]).await;
    scene.served.ended_by_number(&job, JobState::Succeeded).await;
    let text = scene.page("admin", &page).await.page.text();
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what}: {text}"));
    let order =
        ["First trigger accepted", "Attempt 1 started", "Attempt 1 succeeded", "Ended: succeeded"];
    let places = order.map(at);
    assert!(places.is_sorted(), "{text}");
    let late = scene.send("admin", &format!("{page}/cancel"), &[]).await;
    assert_eq!(late.status, 409, "it has ended: {}", late.page.text());
    let other = scene.trigger("build", &json!({ "repo": "b" })).await;
    scene.done(&format!("/jobs/{other}/cancel"), &[]).await;
    assert_eq!(scene.state(&other).await, "cancelled");
    scene.stop().await;
}

#[tokio::test]
async fn r26_a_dead_job_is_redriven_edited_and_discarded_by_its_page() {
    let scene = Scene::new().await;
    let job = scene.ended("dies", &json!({ "n": 1 }), JobState::Dead).await;
    let page = format!("/jobs/{job}");
    let shown = scene.page("admin", &page).await.page;
    assert!(shown.does("redrive") && shown.does("redrive-edited") && shown.does("discard"));
    // Who sees no payload edits none.
    let shown = scene.page("operate", &page).await.page;
    assert!(shown.does("redrive") && !shown.does("redrive-edited"));
    let refused = scene.send("operate", &format!("{page}/redrive"), &[("payload", "2")]).await;
    assert_eq!(refused.status, 403);
    scene.done(&format!("{page}/redrive"), &[("payload", "{\"n\": 2,\r\n\"m\": 1e400}")]).await;
    scene.served.ended_by_number(&job, JobState::Dead).await;
    let text = scene.page("admin", &page).await.page.text();
    assert!(text.contains("1e400") && text.contains("Payload before it was edited"), "{text}");
    assert_eq!(scene.send("admin", &format!("{page}/discard"), &[]).await.status, 422, "no reason");
    scene.done(&format!("{page}/discard"), &[("reason", "a test")]).await;
    assert_eq!(scene.page("admin", &page).await.status, 404);
    scene.stop().await;
}

#[tokio::test]
async fn any_id_or_key_of_a_trigger_leads_to_its_job() {
    let scene = Scene::new().await;
    let job = scene.trigger("build", &json!({ "repo": "a/b c" })).await;
    scene.trigger("build", &json!({ "repo": "a/b c" })).await;
    for path in [
        format!("/triggers/{job}.2"),
        format!("/triggers/{job}"),
        format!("/triggers?id={job}.1"),
        "/triggers?task=build&key=a%2Fb%20c".to_owned(),
        "/triggers?task=&key=a%2Fb+c".to_owned(),
        format!("/triggers?find={job}"),
        format!("/triggers?find={job}.2"),
        "/triggers?find=a%2Fb%20c".to_owned(),
        "/triggers?find=a%2Fb%20c&task=build".to_owned(),
    ] {
        let shown = scene.page("read", &path).await;
        assert_eq!((shown.status, shown.location()), (303, &*format!("/jobs/{job}")), "{path}");
    }
    for (path, status) in [
        ("/triggers/77777.1", 404),
        ("/triggers?id=what", 422),
        ("/triggers?find=what", 404),
        ("/triggers?dedup_key=what", 404),
        ("/triggers?find=a%2Fb%20c&task=dies", 404),
        ("/triggers?task=build&key=none", 404),
        ("/triggers", 200),
    ] {
        let shown = scene.page("read", path).await;
        assert_eq!(shown.status, status, "{path}");
        assert_eq!(shown.page.by_id("problem").is_some(), status != 200, "{path}");
    }
    scene.stop().await;
}

/// One text may be keys of several kinds, and each may be of another job.
#[tokio::test]
async fn r15_what_may_be_several_jobs_is_a_choice_and_what_is_one_leads_there() {
    let scene = Scene::new().await;
    let send = async |repo: &str, more: serde_json::Value| {
        let mut body = json!({ "payload": { "repo": repo } });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let made = scene.post("/v1/tasks/build/triggers", body).await;
        made["job"].as_str().unwrap().to_owned()
    };
    let by_key = send("same", json!({ "idempotency_key": "only-i" })).await;
    let by_idempotency = send("b", json!({ "idempotency_key": "same", "dedup": "only-d" })).await;
    let by_dedup = send("c", json!({ "dedup": "same" })).await;
    for (key, kind, job) in
        [("only-i", "idempotency_key", &by_key), ("only-d", "dedup_key", &by_idempotency)]
    {
        let shown = scene.page("read", &format!("/triggers?find={key}")).await;
        let expected = format!("/jobs/{job}?{kind}={key}");
        assert_eq!((shown.status, shown.location()), (303, &*expected), "{key}");
        // The page says which key led to it, and trusts no link that says so of another job.
        let page = scene.page("read", &expected).await.page;
        assert!(page.by_id("led-by").is_some() && page.text().contains(key), "{key}");
        let other = scene.page("read", &format!("/jobs/{by_dedup}?{kind}={key}")).await;
        assert_eq!((other.status, other.page.by_id("led-by").is_none()), (200, true));
    }
    let shown = scene.page("read", "/triggers?find=same").await;
    assert_eq!(shown.status, 200);
    let text = shown.page.text();
    let kinds =
        [("Debounce key", &by_key), ("Idempotency key", &by_idempotency), ("Dedup key", &by_dedup)];
    for (kind, job) in kinds {
        assert!(text.contains(kind), "{kind}: {text}");
        let link = format!("/jobs/{job}");
        assert!(shown.page.tags("a").any(|tag| tag.get("href") == Some(&*link)), "{link}: {text}");
    }
    assert!(shown.page.by_id("problem").is_none());
    scene.stop().await;
}

#[tokio::test]
async fn r42_a_job_links_to_its_trace() {
    let scene = Scene::new().await;
    let id = "0af7651916cd43dd8448eb211c80319c";
    let trace = json!({ "traceparent": format!("00-{id}-b7ad6b7169203331-01") });
    let body = json!({ "payload": { "repo": "a" }, "trace": trace });
    let made = scene.post("/v1/tasks/build/triggers", body).await;
    let page = scene.page("read", &format!("/jobs/{}", made["job"].as_str().unwrap())).await.page;
    let link = page.tags("a").find(|tag| tag.get("class") == Some("trace")).unwrap();
    assert_eq!(link.get("href"), Some(&*format!("https://traces.test/trace/{id}?a=b")));
    scene.stop().await;
}

#[tokio::test]
async fn a_list_of_jobs_has_the_filters_of_the_api_and_pages() {
    let scene = Scene::new().await;
    for n in 0..60 {
        scene.trigger("build", &json!({ "repo": format!("r{n}") })).await;
    }
    let page = scene.page("read", "/jobs?task=build&state=scheduled&key=").await.page;
    assert!(page.text().contains("60 jobs match."), "{}", page.text());
    let rows =
        |page: &super::Page| page.tags("tr").filter(|tag| tag.get("data-job").is_some()).count();
    assert_eq!(rows(&page), 50);
    let next = page.by_id("next").unwrap().get("href").unwrap().to_owned();
    assert!(next.contains("task=build") && next.contains("before="), "{next}");
    let older = scene.page("read", &next).await.page;
    assert_eq!(rows(&older), 10);
    assert!(older.by_id("next").is_none());
    let one = scene.page("read", "/jobs?key=r7&partition=r7&age=0s").await.page;
    assert!(one.by_id("problem").is_some(), "0s is no age: {}", one.text());
    let one = scene.page("read", "/jobs?key=r7&partition=r7").await.page;
    assert_eq!(rows(&one), 1);
    let wrong = scene.page("read", "/jobs?state=asleep&key=r7").await;
    assert_eq!(wrong.status, 422);
    assert!(wrong.page.text().contains("is not a state") && wrong.page.field("key") == Some("r7"));
    scene.stop().await;
}
