//! `GET /v1/tasks/{task}/what-if`: what other thresholds would have done with the triggers that were seen lately.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use quell::trigger::Thresholds;
use quell::{Edge, Fold};
use quell_lab::Rule;
use quell_lab::simulate::Simulation;

use super::Api;
use super::auth::Access;
use super::error::{ApiError, Refused};
use super::jobs::{Pairs, Parameters};
use super::policy::thresholds_in_force;
use super::timeline::time;
use super::triggers::known_task;
use crate::config::duration;
use crate::recent::{Recent, Span};
use crate::view::{self, WhatIfPair};

/// The most triggers that are simulated: the newest.
const MOST: usize = 250_000;
/// The span where none is asked for: all that the record has.
const SPAN: Duration = Duration::from_secs(7 * 86_400);
/// The pairs that are tried beside the one in force and the one that is asked for, in seconds.
const USUAL: [(u64, u64); 9] = [
    (1, 10),
    (5, 30),
    (10, 60),
    (30, 120),
    (30, 300),
    (60, 600),
    (300, 1_800),
    (900, 3_600),
    (3_600, 14_400),
];
/// Above this share of keys with one trigger, a key rarely gathers anything.
const MANY_SINGLE: f64 = 0.8;

/// `GET /v1/tasks/{task}/what-if?min=&max=&from=&to=`.
#[utoipa::path(
    get,
    path = "/v1/tasks/{task}/what-if",
    tag = "tasks",
    operation_id = "tasks_what_if",
    summary = "Show what other thresholds would have done with the triggers that were seen lately.",
    description = "By the rules alone, as `quell simulate` does it: workers are free, and runs take no time. The \
                   newest 250,000 triggers count that this server accepted.",
    params(
        ("task" = String, Path, description = "The task, which the server declares."),
        ("min" = Option<String>, Query, description = "A quiet period to try, with `max`."),
        ("max" = Option<String>, Query, description = "A longest delay to try, with `min`."),
        ("from" = Option<String>, Query, description = "Only triggers from here on; a week ago where it is left out."),
        ("to" = Option<String>, Query, description = "Only triggers before this; now where it is left out."),
    ),
    responses((status = 200, body = view::WhatIf, description = "Done."), Refused),
)]
pub(super) async fn show(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(task): Path<String>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::WhatIf>, ApiError> {
    let (name, task) = known_task(&api, &task)?;
    let mut query = Parameters::read(query)?;
    let asked = asked(&mut query)?;
    let now = api.overviews.recent().now();
    let to = query.take("to", |text| time("to", &text))?.unwrap_or(now);
    let from = query.take("from", |text| time("from", &text))?.unwrap_or_else(|| to.before(SPAN));
    query.end()?;
    let debounce = task.checked.debounce();
    if debounce.edge != Edge::Trailing || task.key.is_none() {
        let message =
            "only thresholds of tasks with a key that run at the end of a burst are simulated";
        return Err(ApiError::invalid("task", message));
    }
    let queue = task.checked.queue().clone();
    let (current, from_setting) = thresholds_in_force(&api, &name, task).await?;
    let rule = Rule {
        max_triggers: debounce.max_triggers,
        fold: Fold::clone(task.checked.fold()),
        ..Rule::new(current)
    };
    let (grant, of) = (access.grant().clone(), name.clone());
    let simulate = move |recent: &Recent| {
        let span = Span { from, to, steps: 1 };
        let (triggers, cut) = recent.triggers(&of, |queue| grant.sees(queue, &of), span, MOST);
        let ends = [triggers.first(), triggers.last()].map(|one| one.map_or(to, |(_, at)| *at));
        let count = triggers.len();
        let simulation = Simulation::of(triggers);
        let pairs = simulated(&simulation, &rule, asked);
        (ends, count, cut, simulation.keys(), pairs, recent.complete(&of).0)
    };
    let simulated = api.overviews.read_record(simulate).await?;
    let ([first, last], count, cut, (keys, single), pairs, complete) = simulated;
    Ok(Json(view::WhatIf {
        task: name,
        from: first.to_string(),
        to: last.to_string(),
        complete_from: complete.to_string(),
        triggers: count as u64,
        cut,
        keys: keys as u64,
        single_keys: single as u64,
        queue: queue.to_string(),
        from_setting,
        remedies: remedies(keys, single, &pairs),
        pairs,
    }))
}

/// The pair that is asked for.
fn asked(query: &mut Parameters) -> Result<Option<Thresholds>, ApiError> {
    let mut length = |name: &'static str| {
        query.take(name, |text| {
            duration::parse(&text).map_err(|error| quell::Error::invalid(name, error))
        })
    };
    match (length("min")?, length("max")?) {
        (Some(min), Some(max)) => Ok(Some(Thresholds::new(min, max)?)),
        (None, None) => Ok(None),
        (Some(_), None) => Err(ApiError::invalid("max", "give max with min")),
        (None, Some(_)) => Err(ApiError::invalid("min", "give min with max")),
    }
}

/// The results, by delay.
fn simulated(
    simulation: &Simulation,
    current: &Rule,
    asked: Option<Thresholds>,
) -> Vec<WhatIfPair> {
    let secs = Duration::from_secs;
    let usual = USUAL.iter().filter_map(|(min, max)| Thresholds::new(secs(*min), secs(*max)).ok());
    let all: BTreeSet<(Duration, Duration)> = usual
        .chain(asked)
        .chain([current.thresholds])
        .map(|pair| (pair.min(), pair.max()))
        .collect();
    let mut pairs: Vec<WhatIfPair> = all
        .into_iter()
        .filter_map(|(min, max)| Thresholds::new(min, max).ok())
        .map(|thresholds| {
            let result = simulation.run(&Rule { thresholds, ..current.clone() });
            WhatIfPair::new(&result, thresholds == current.thresholds, asked == Some(thresholds))
        })
        .collect();
    pairs.sort_by(|a, b| {
        a.delay_p99_ms.total_cmp(&b.delay_p99_ms).then(b.saved.total_cmp(&a.saved))
    });
    // In this order a pair is on the frontier if it saves more than all before it.
    let mut best = -1.0;
    for pair in &mut pairs {
        pair.frontier = pair.saved > best;
        best = pair.saved.max(best);
    }
    pairs
}

/// What to do where most keys had one trigger only.
pub(super) fn remedy_for_single(keys: usize, single: usize) -> Option<String> {
    if single as f64 <= MANY_SINGLE * keys as f64 {
        return None;
    }
    Some(format!(
        "{single} of {keys} keys had one trigger only: a key that has the id of an event gathers nothing. Leave out of \
         `key` what differs for each trigger"
    ))
}

fn remedies(keys: usize, single: usize, pairs: &[WhatIfPair]) -> Vec<String> {
    let mut found = Vec::new();
    if keys == 0 {
        found.push("no trigger was seen: come back when there are some".to_owned());
        return found;
    }
    found.extend(remedy_for_single(keys, single));
    let current = pairs.iter().find(|pair| pair.current);
    let better = |current: &&WhatIfPair| {
        pairs.iter().find(|pair| {
            pair.saved > current.saved + 0.05 && pair.delay_p99_ms <= current.delay_p99_ms
        })
    };
    if let Some(better) = current.as_ref().and_then(better) {
        found.push(format!(
            "min {} and max {} save more runs and delay no longer than the thresholds in force",
            better.min, better.max
        ));
    }
    found
}
