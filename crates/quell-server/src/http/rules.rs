//! Which right each operation asks for, and how a token that is limited to tasks or queues is held to them.
//!
//! The API's description shows the rights, and the tests go over every operation and every right. An operation
//! that is not in the table is for administrators alone.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::http::Method;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::SecurityRequirement;

use super::openapi::TOKEN;
use crate::access::Right;

/// Who may call an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Anyone: it has nothing of the store.
    Nothing,
    /// Who has its own proof, which is no token.
    Proof,
    /// Who has this right.
    Right(Right),
}

/// What of the store an operation is about, for a token that is limited to some tasks or queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Objects {
    /// Nothing that belongs to a task or a queue.
    None,
    /// The task of the path.
    Task,
    /// The job of the path.
    Job,
    /// The queue of the path.
    Queue,
    /// The schedule of the path.
    Schedule,
    /// What the handler finds, which it filters itself.
    Filtered,
    /// All tasks and queues: refused.
    All,
}

/// What holds for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) needs: Needs,
    pub(super) objects: Objects,
}

const fn rule(needs: Needs, objects: Objects) -> Rule {
    Rule { needs, objects }
}

const fn right(right: Right, objects: Objects) -> Rule {
    rule(Needs::Right(right), objects)
}

/// What no operation has: a path without one.
pub(super) const NOTHING: Rule = rule(Needs::Nothing, Objects::None);
/// What is not in the table.
const OTHER: Rule = right(Right::Admin, Objects::All);

/// The rules, by the ids of operations.
const RULES: &[(&str, Rule)] = &[
    ("actions_begin", right(Right::Operate, Objects::Filtered)),
    ("actions_list", right(Right::Read, Objects::Filtered)),
    ("actions_show", right(Right::Read, Objects::Filtered)),
    ("actions_stop", right(Right::Operate, Objects::Filtered)),
    ("alerts_forget", right(Right::Operate, Objects::All)),
    ("alerts_list", right(Right::Read, Objects::All)),
    ("audit_list", right(Right::Admin, Objects::All)),
    ("completions_complete", rule(Needs::Proof, Objects::None)),
    ("dead_causes", right(Right::Read, Objects::Filtered)),
    ("dead_discard", right(Right::Operate, Objects::Filtered)),
    ("dead_discard_one", right(Right::Operate, Objects::Job)),
    ("dead_export", right(Right::Payload, Objects::Filtered)),
    ("dead_import", right(Right::Admin, Objects::All)),
    ("dead_list", right(Right::Read, Objects::Filtered)),
    ("dead_redrive", right(Right::Operate, Objects::Filtered)),
    ("dead_redrive_one", right(Right::Operate, Objects::Job)),
    ("jobs_cancel", right(Right::Operate, Objects::Job)),
    ("jobs_counts", right(Right::Read, Objects::Filtered)),
    ("jobs_explain", right(Right::Read, Objects::Filtered)),
    ("jobs_list", right(Right::Read, Objects::Filtered)),
    ("jobs_patch", right(Right::Operate, Objects::Job)),
    ("jobs_run", right(Right::Operate, Objects::Job)),
    ("jobs_show", right(Right::Read, Objects::Job)),
    ("jobs_windows", right(Right::Read, Objects::Task)),
    ("marks_add", right(Right::Operate, Objects::All)),
    ("marks_list", right(Right::Read, Objects::None)),
    ("overview_events", right(Right::Read, Objects::Filtered)),
    ("overview_show", right(Right::Read, Objects::Filtered)),
    ("queues_delete", right(Right::Admin, Objects::Queue)),
    ("queues_list", right(Right::Read, Objects::Filtered)),
    ("queues_partitions", right(Right::Read, Objects::Queue)),
    ("queues_patch", right(Right::Admin, Objects::Queue)),
    ("queues_pause", right(Right::Operate, Objects::Queue)),
    ("queues_pause_task", right(Right::Operate, Objects::Task)),
    ("queues_put", right(Right::Admin, Objects::Queue)),
    ("queues_resume", right(Right::Operate, Objects::Queue)),
    ("queues_resume_task", right(Right::Operate, Objects::Task)),
    ("queues_show", right(Right::Read, Objects::Queue)),
    ("queues_tasks", right(Right::Read, Objects::Filtered)),
    // Who triggered a job may read its result.
    ("results_result", right(Right::Trigger, Objects::Filtered)),
    ("schedules_backfill", right(Right::Operate, Objects::Schedule)),
    ("schedules_delete", right(Right::Admin, Objects::Schedule)),
    ("schedules_list", right(Right::Read, Objects::Filtered)),
    ("schedules_pause", right(Right::Operate, Objects::Schedule)),
    ("schedules_resume", right(Right::Operate, Objects::Schedule)),
    ("schedules_run", right(Right::Operate, Objects::Schedule)),
    ("schedules_set", right(Right::Admin, Objects::All)),
    ("schedules_show", right(Right::Read, Objects::Schedule)),
    ("schedules_ticks", right(Right::Read, Objects::Schedule)),
    ("server_health", rule(Needs::Nothing, Objects::None)),
    ("server_metrics", right(Right::Read, Objects::Filtered)),
    ("server_proof", right(Right::Read, Objects::All)),
    ("server_readiness", rule(Needs::Nothing, Objects::None)),
    // The token of its body is the proof.
    ("session_begin", rule(Needs::Proof, Objects::None)),
    ("session_end", rule(Needs::Nothing, Objects::None)),
    ("session_show", rule(Needs::Nothing, Objects::None)),
    ("sources_deliver", rule(Needs::Proof, Objects::None)),
    ("sources_list", right(Right::Read, Objects::Filtered)),
    ("tasks_habits", right(Right::Read, Objects::Task)),
    ("tasks_patch", right(Right::Admin, Objects::Task)),
    ("tasks_policy", right(Right::Read, Objects::Task)),
    ("tasks_put", right(Right::Admin, Objects::Task)),
    ("tasks_show", right(Right::Read, Objects::Task)),
    ("tasks_what_if", right(Right::Read, Objects::Task)),
    ("tasks_timeline", right(Right::Read, Objects::Task)),
    ("tokens_add", right(Right::Admin, Objects::All)),
    ("tokens_list", right(Right::Admin, Objects::All)),
    ("tokens_revoke", right(Right::Admin, Objects::All)),
    ("tokens_rotate", right(Right::Admin, Objects::All)),
    ("triggers_cancel", right(Right::Operate, Objects::Task)),
    ("triggers_flush", right(Right::Operate, Objects::Task)),
    ("triggers_trigger", right(Right::Trigger, Objects::Filtered)),
    ("unreadable_list", right(Right::Read, Objects::All)),
    ("unreadable_restore", right(Right::Operate, Objects::All)),
    ("workers_claim", right(Right::Work, Objects::Filtered)),
    ("workers_drain", right(Right::Operate, Objects::All)),
    ("workers_leave", right(Right::Work, Objects::None)),
    ("workers_list", right(Right::Read, Objects::All)),
    ("workers_renew", right(Right::Work, Objects::Filtered)),
    ("workers_resume", right(Right::Operate, Objects::All)),
    ("workers_settle", right(Right::Work, Objects::Filtered)),
];

/// The rule of an operation, by its id.
pub(super) fn of(operation: &str) -> Rule {
    let found = RULES.iter().find(|(id, _)| *id == operation);
    found.map_or(OTHER, |(_, rule)| *rule)
}

/// An operation of a path.
#[derive(Debug)]
struct Known {
    method: &'static str,
    id: String,
    rule: Rule,
}

/// The operations, by path.
static OPERATIONS: LazyLock<HashMap<String, Vec<Known>>> = LazyLock::new(|| {
    let known = |(method, operation): (&'static str, &Operation)| {
        let id = operation.operation_id.clone().unwrap_or_default();
        Known { method, rule: of(&id), id }
    };
    let document = super::description();
    let paths = document.paths.paths.iter();
    paths.map(|(path, item)| (path.clone(), operations(item).map(known).collect())).collect()
});

/// The id and the rule of the operation that a request is for; none for a path or a method without one.
pub(super) fn of_request(path: &str, method: &Method) -> Option<(&'static str, Rule)> {
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    let known = OPERATIONS.get(path)?.iter().find(|known| known.method == method)?;
    Some((known.id.as_str(), known.rule))
}

fn operations(item: &PathItem) -> impl Iterator<Item = (&'static str, &Operation)> {
    let all = [
        ("GET", &item.get),
        ("PUT", &item.put),
        ("POST", &item.post),
        ("PATCH", &item.patch),
        ("DELETE", &item.delete),
    ];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_ref()?)))
}

/// Says in a description which right each operation asks for.
pub(super) fn describe(document: &mut OpenApi) {
    for item in document.paths.paths.values_mut() {
        let all = [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete];
        for operation in all.into_iter().flatten() {
            let rule = of(operation.operation_id.as_deref().unwrap_or_default());
            operation.security = Some(match rule.needs {
                Needs::Nothing | Needs::Proof => Vec::new(),
                // A server without tokens asks for none.
                Needs::Right(right) => vec![
                    SecurityRequirement::default(),
                    SecurityRequirement::new(TOKEN, [right.name()]),
                ],
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_rule_and_every_rule_an_operation() {
        let ids: Vec<&str> = OPERATIONS.values().flatten().map(|known| known.id.as_str()).collect();
        for id in &ids {
            assert!(RULES.iter().any(|(known, _)| known == id), "{id} has no rule");
        }
        for (id, _) in RULES {
            assert!(ids.contains(id), "{id} is no operation");
        }
        assert_eq!(of("nosuch"), OTHER);
        assert_eq!(of_request("/v1/jobs/{id}", &Method::HEAD).unwrap().0, "jobs_show");
        assert_eq!(of_request("/v1/jobs/{id}", &Method::PUT), None);
    }
}
