//! Thresholds of a task are set by its page and by what-if, and undone (R14).

use serde_json::{Value, json};

use super::Scene;

/// The hidden fields of the form that undoes or clears.
async fn hidden(scene: &Scene, names: &[&'static str]) -> Vec<(&'static str, String)> {
    let page = scene.page("admin", "/tasks/build").await.page;
    let value = |name: &&'static str| (*name, page.field(name).unwrap_or_default().to_owned());
    names.iter().map(value).collect()
}

async fn done(scene: &Scene, path: &str, fields: &[(&'static str, String)]) {
    let fields: Vec<(&str, &str)> =
        fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let to = scene.done(path, &fields).await;
    assert!(to.starts_with("/tasks/build?done="), "{to}");
}

#[tokio::test]
async fn r14_thresholds_of_a_task_are_set_with_before_and_after_undone_and_cleared() {
    let scene = Scene::new().await;
    let set = async || scene.get("/v1/tasks/build").await["debounce"].clone();
    scene.trigger("build", &json!({ "repo": "a" })).await;
    let what_if = scene.page("admin", "/what-if?task=build&min=1m&max=5m").await.page;
    assert!(what_if.does("apply") && what_if.text().contains("which the task declares"));
    let page = scene.page("admin", "/tasks/build").await.page;
    assert!(page.does("review") && page.by_id("undo").is_none() && page.by_id("clear").is_none());

    let form = [("min", "1m"), ("max", "5m")];
    let review = scene.send("admin", "/tasks/build/review", &form).await;
    let text = review.page.text();
    assert_eq!(review.status, 200, "{text}");
    assert!(text.contains("Quiet period (min) 1h 1m (changed)"), "{text}");
    assert!(text.contains("Set by the task's declaration an operator (changed)"), "{text}");
    assert_eq!(set().await, Value::Null, "a review changes nothing");
    let tag = review.page.field("tag").unwrap().to_owned();
    let form = [("min", "1m"), ("max", "5m"), ("tag", tag.as_str())];
    assert_eq!(scene.send("operate", "/tasks/build/save", &form).await.status, 403);
    assert_eq!(scene.done("/tasks/build/save", &form).await, "/tasks/build?done=saved");
    assert_eq!(set().await, json!({ "min": "1m", "max": "5m" }));
    assert_eq!(scene.send("admin", "/tasks/build/save", &form).await.status, 412, "a stale tag");

    let page = scene.page("admin", "/tasks/build").await.page;
    let text = page.text();
    assert!(text.contains("An operator set min 1m and max 5m"), "{text}");
    assert!(text.contains("debounce.min 1m set by an operator"), "{text}");
    let what_if = scene.page("admin", "/what-if?task=build").await.page.text();
    assert!(what_if.contains("which an operator set for the task"), "{what_if}");

    // A pause between is no change of the thresholds: they can still be undone.
    scene.done("/tasks/build/pause", &[]).await;
    scene.done("/tasks/build/resume", &[]).await;
    done(&scene, "/tasks/build/undo", &hidden(&scene, &["former", "tag"]).await).await;
    assert_eq!(set().await, Value::Null);
    done(&scene, "/tasks/build/undo", &hidden(&scene, &["former", "tag"]).await).await;
    assert_eq!(set().await, json!({ "min": "1m", "max": "5m" }), "an undo is undone");
    done(&scene, "/tasks/build/clear", &hidden(&scene, &["tag"]).await).await;
    assert_eq!(set().await, Value::Null);

    let wrong = scene.send("admin", "/tasks/build/save", &[("min", "5m"), ("max", "1m")]).await;
    assert!(wrong.status == 412 || wrong.status == 422, "{}", wrong.page.text());
    for path in ["/tasks/build", "/what-if?task=build"] {
        let page = scene.page("operate", path).await.page;
        assert!(!page.does("apply") && page.lacks().contains(&"admin"), "{path}: {}", page.text());
    }
    scene.stop().await;
}
