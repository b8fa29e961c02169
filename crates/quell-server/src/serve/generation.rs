//! What runs for one configuration: a worker, the routes, the alerts. A reload starts the next generation and lets the
//! attempts of the one before end.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use quell::worker::pull::PullTasks;
use quell::{Ctx, Payload, TaskName, WorkerBuilder};
use quell_core::attempt::AttemptOutcome;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Common;
use crate::access::Tokens;
use crate::alerts::{DeclaredAlert, Ended, Watch};
use crate::config::{Config, DeclaredTask};
use crate::handlers::{GRACE, Handler, Invocation};
use crate::http::{self, Api, Completions, Pull, Sources};
use crate::redact::Rules;

/// How often it is noted when tokens were used last.
const NOTE_USES: Duration = Duration::from_secs(60);

/// The state that attempts share.
#[derive(Debug)]
struct Work {
    tasks: Arc<BTreeMap<TaskName, DeclaredTask>>,
    /// Counts their outcomes, for alerts.
    tally: Arc<crate::alerts::Tally>,
    /// Where others reach this server.
    base_url: Arc<str>,
    /// Attempts that go on at their targets.
    completions: Completions,
    /// Fires when the shutdown's grace time is over.
    stopping: CancellationToken,
}

/// What runs for one configuration.
#[derive(Debug)]
pub(super) struct Generation {
    rules: Rules,
    pull: Pull,
    completions: Completions,
    /// Fires when the next one takes its place.
    retired: CancellationToken,
    side: JoinSet<()>,
    worker: JoinSet<quell::Result<()>>,
}

/// A worker of the tasks that run here.
fn registered(
    builder: WorkerBuilder<Work>,
    tasks: &BTreeMap<TaskName, DeclaredTask>,
) -> WorkerBuilder<Work> {
    let own = tasks.iter().filter(|(_, task)| task.handler.is_some());
    own.fold(builder, |builder, (name, task)| {
        builder.register_raw(name.clone(), &task.policy, attempt)
    })
}

/// Runs a worker until it has stopped, and beside it the end of its grace time.
async fn run(
    builder: WorkerBuilder<Work>,
    stop: CancellationToken,
    end_grace: impl Future<Output = Infallible>,
) -> quell::Result<()> {
    tokio::select! {
        ended = builder.run_until(stop.cancelled_owned()) => ended,
        never = end_grace => match never {},
    }
}

/// What people do not see of the documents of these tasks, and of those that were declared before.
fn rules_of(tasks: &BTreeMap<TaskName, DeclaredTask>, before: Option<&Generation>) -> Rules {
    let rules = Rules::after(before.map_or(&Rules::default(), |before| &before.rules), tasks);
    for task in rules.left_by(tasks) {
        warn!(%task, "it is not declared any more: what its rules hide stays hidden until a restart");
    }
    rules
}

impl Generation {
    /// Starts the worker and the side tasks of a configuration, and makes its routes.
    pub(super) fn start(
        common: &Common,
        config: Config,
        before: Option<&Generation>,
    ) -> anyhow::Result<(Self, Router)> {
        let quell = &common.quell;
        let tasks: Arc<BTreeMap<TaskName, DeclaredTask>> = Arc::new(config.tasks);
        let rules = rules_of(&tasks, before);
        let retired = common.stop_listening.child_token();
        let (mut side, mut worker) = (JoinSet::new(), JoinSet::new());
        let (pull, completions) = tasks_elsewhere(common, &tasks, config.lease, before)?;
        side.spawn(completions.clone().watch(retired.clone()));
        let base_url = config.url.unwrap_or_else(|| common.own_url()).into();
        if !tasks.is_empty() {
            let stopping = CancellationToken::new();
            let end_grace = end_grace(common.stop_working.clone(), config.grace, stopping.clone());
            let work = Work {
                tasks: Arc::clone(&tasks),
                tally: Arc::clone(&common.tally),
                base_url,
                completions: completions.clone(),
                stopping,
            };
            let builder = quell
                .worker(work)
                .concurrency(config.concurrency)
                .grace(config.grace.saturating_add(GRACE))
                .lease(config.lease)
                .retention(config.retention)
                .watch(pull.tasks().queues())
                .drain_when(retired.clone().cancelled_owned())
                // The process is the server's own.
                .with_panic_hook();
            let builder = registered(builder, &tasks);
            worker.spawn(run(builder, common.stop_working.clone(), end_grace));
        }
        let alerts = Arc::<[DeclaredAlert]>::from(config.alerts);
        if !alerts.is_empty() {
            let watch = Watch::new(quell.clone(), Arc::clone(&alerts), Arc::clone(&common.tally));
            side.spawn(watch.run(config.alert_interval, retired.clone()));
        }
        if let Some(tokens) = config.tokens.clone() {
            side.spawn(note_uses(tokens, retired.clone()));
        }
        common.metrics.declare(http::declared(&tasks));
        let api = Api {
            quell: quell.clone(),
            actions: common.actions.clone(),
            audit: common.audit.clone(),
            tasks,
            rules: rules.clone(),
            pull: pull.clone(),
            completions: completions.clone(),
            sources: Arc::new(Sources::new(config.sources)),
            alerts,
            metrics: common.metrics.clone(),
            overviews: common.overviews.clone(),
            proofs: common.proofs.clone(),
            token: config.token,
            tokens: config.tokens,
            hosts: http::hosts(common.addresses(), config.allowed_hosts),
            proxies: config.trusted_proxies,
            strict_transport: common.is_strict(),
            sessions: common.sessions.clone(),
            attempts: common.attempts.clone(),
            session_times: config.session,
            trace_url: config.trace_url,
            max_body: config.max_body,
            health: common.health.clone(),
            stopping: common.stop_working.clone(),
        };
        Ok((Generation { rules, pull, completions, retired, side, worker }, http::router(api)))
    }

    /// Jobs for workers elsewhere.
    pub(super) fn pull(&self) -> &PullTasks {
        self.pull.tasks()
    }

    /// Waits for the end of its worker, which comes without a stop only if it failed.
    pub(super) async fn failed(&mut self) -> anyhow::Error {
        match self.worker.join_next().await {
            Some(Ok(Ok(()))) => anyhow::anyhow!("the worker ended without a stop"),
            Some(Ok(Err(error))) => anyhow::Error::new(error).context("the worker ended"),
            Some(Err(error)) => anyhow::Error::new(error).context("the worker ended"),
            // Without tasks there is no worker.
            None => std::future::pending().await,
        }
    }

    /// Claims nothing more; its attempts go on until they end, or until a shutdown bounds them.
    pub(super) async fn retire(mut self) -> anyhow::Result<()> {
        self.retired.cancel();
        self.work_ended().await?;
        self.side_ended().await
    }

    /// Waits until its attempts have ended.
    pub(super) async fn work_ended(&mut self) -> anyhow::Result<()> {
        while let Some(ended) = self.worker.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Waits until its other tasks have ended.
    pub(super) async fn side_ended(&mut self) -> anyhow::Result<()> {
        while let Some(ended) = self.side.join_next().await {
            ended?;
        }
        Ok(())
    }
}

/// What goes on outside of this process: jobs that workers pull, and work that targets report later. Leases of both
/// stay known from one generation to the next.
fn tasks_elsewhere(
    common: &Common,
    tasks: &BTreeMap<TaskName, DeclaredTask>,
    lease: Duration,
    before: Option<&Generation>,
) -> anyhow::Result<(Pull, Completions)> {
    let of = |known: Option<&PullTasks>| {
        known.map_or_else(|| PullTasks::new(common.quell.clone()), PullTasks::for_other_tasks)
    };
    let is_completed = |handler: Option<&Handler>| handler.and_then(Handler::completion).is_some();
    let pulled = of(before.map(|before| before.pull.tasks()));
    let pulled = elsewhere(pulled, tasks, |handler| handler.is_none())?;
    let reported = of(before.map(|before| before.completions.tasks()));
    let reported = elsewhere(reported, tasks, is_completed)?;
    Ok(match before {
        Some(before) => (before.pull.after(pulled, lease), before.completions.after(reported)),
        None => {
            let tally = || Arc::clone(&common.tally);
            (Pull::new(pulled, tally(), lease), Completions::new(reported, tally()))
        }
    })
}

/// The tasks whose attempts end elsewhere, as their handlers show.
fn elsewhere(
    mut pull: PullTasks,
    tasks: &BTreeMap<TaskName, DeclaredTask>,
    is_elsewhere: impl Fn(Option<&Handler>) -> bool,
) -> anyhow::Result<PullTasks> {
    let of_them = tasks.iter().filter(|(_, task)| is_elsewhere(task.handler.as_ref()));
    for (name, task) in of_them {
        pull = pull.task(name.clone(), &task.policy)?;
    }
    Ok(pull)
}

/// Makes commands end once the grace time after the shutdown is over.
async fn end_grace(
    stop: CancellationToken,
    grace: Duration,
    stopping: CancellationToken,
) -> Infallible {
    stop.cancelled().await;
    tokio::time::sleep(grace).await;
    stopping.cancel();
    std::future::pending().await
}

/// Notes now and then when tokens were used last.
async fn note_uses(tokens: Tokens, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(NOTE_USES);
    ticks.tick().await;
    loop {
        let stops = tokio::select! {
            _ = ticks.tick() => false,
            () = stop.cancelled() => true,
        };
        let tokens = tokens.clone();
        let written = tokio::task::spawn_blocking(move || tokens.write_used()).await;
        if let Ok(Err(error)) = written {
            warn!(%error, "it is not noted on disk when tokens were used last");
        }
        if stops {
            return;
        }
    }
}

/// One attempt of a declared task.
async fn attempt(payload: Payload, ctx: Ctx<Work>) -> Result<Option<Payload>, quell::TaskError> {
    let Work { tasks, tally, base_url, completions, stopping } = ctx.state();
    let declared = tasks.get(ctx.task());
    let Some((task, handler)) = declared.and_then(|task| Some((task, task.handler.as_ref()?)))
    else {
        return Err(quell::TaskError::retry("the task has no handler in this server"));
    };
    let queue = task.checked.queue().clone();
    let call = Invocation::new(&ctx, queue, payload, Arc::clone(base_url), stopping.clone());
    let outcome = Ended::begin(tally, task.checked.queue(), ctx.task());
    // What a handler says may repeat what its payload has.
    let ended = handler
        .run(&call)
        .await
        .map_err(|error| error.map_text(|text| task.redact.texts(&call.payload).hide(text)));
    outcome.record(&ended);
    if let Some(pause) = handler.away_for() {
        ctx.hold_off(pause);
    }
    let goes_on = |error: &quell::TaskError| error.outcome() == AttemptOutcome::Released;
    if let Some(within) = handler.completion().filter(|_| ended.as_ref().is_err_and(goes_on)) {
        completions.expect(ctx.lease(), within);
    }
    ended
}
