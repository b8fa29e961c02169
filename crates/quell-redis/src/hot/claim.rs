//! Starting jobs by one script (R28, R30, R31), and when the next one may start.

use std::cmp::Reverse;
use std::sync::Arc;

use quell_core::edge::Edge;
use quell_core::{
    Claim, Claimed, ClaimedJob, Draw, Job, NextDue, Now, QueueName, QueueSettings, Rate, Result,
    TaskName,
};

use super::{Answer, Request, exact};

use crate::backend::RedisBackend;
use crate::commit::lane_member;
use crate::known::{Known, Lane};
use crate::look::{job_of, maybe_bytes, text};
use crate::pack::{Item, list};
use crate::row::{corrupt, decode_job};
use crate::shard::Shard;

/// Jobs that one script starts: the server does nothing else meanwhile.
const MOST_JOBS: usize = 1_000;
/// Lanes that one script takes jobs from.
const MOST_LANES: usize = 200;
/// How often one claim asks because it had not named the lines that turned out to be next.
const ROUNDS: usize = 5;

/// What scripts did for a claim.
#[derive(Debug, Default)]
struct Given {
    jobs: Vec<ClaimedJob>,
    /// When the last of them ran.
    now: Now,
    /// When to look again; none where the step that knows all cases must do what is left.
    next: Option<NextDue>,
}

/// What one script did of it.
enum Part {
    /// It had to leave lines out whose keys it did not receive.
    Cut,
    /// It started all that there were, this number.
    Whole(usize),
}

/// What a script is asked for.
struct Asked<'c> {
    queue: &'c QueueName,
    tasks: &'c Arc<[TaskName]>,
    worker: &'c str,
    limit: usize,
    /// The length of the leases, in microseconds.
    lease: i64,
    /// What the tokens of its leases are made of.
    draw: Draw,
    /// Lines of partitions that may be next.
    lines: Arc<[String]>,
}

impl RedisBackend {
    /// Starts jobs, and says whether the engine's step is to start the rest. None where it is to start all.
    pub(crate) async fn claim_some(
        &self,
        now: Now,
        claim: &Claim,
    ) -> Result<Option<(Claimed, bool)>> {
        let rated = || self.shard.known().limits_rate(&claim.queue);
        if self.shard.link.waits() {
            // Who starts nothing has nothing to wait for.
            let next = self.next_due_of(now, &claim.queue, &claim.tasks).await?;
            if let Some(next) = next.filter(|next| next.due.is_none_or(|due| due > next.now)) {
                let (now, jobs) = (next.now, Vec::new());
                return Ok(Some((Claimed { now, jobs, next, rated: rated() }, false)));
            }
        }
        let Given { jobs, now, next, .. } = self.start_some(now, claim).await?;
        // They have started: where what comes next is unknown, the worker looks at once.
        let has_rest = next.is_none();
        let again = now.filter(|_| !jobs.is_empty());
        let next = next.or(again.map(|now| NextDue { now, due: Some(now), expiry: None }));
        let claimed = next.map(|next| Claimed { now: next.now, jobs, next, rated: rated() });
        Ok(claimed.map(|claimed| (claimed, has_rest)))
    }

    /// Starts what scripts may start.
    ///
    /// # Errors
    /// Where nothing was started.
    async fn start_some(&self, now: Now, claim: &Claim) -> Result<Given> {
        let mut given = Given::default();
        let Some(lease) = exact(claim.lease) else { return Ok(given) };
        let (shard, queue, tasks) = (&self.shard, &claim.queue, &claim.tasks);
        let mut cuts = 0;
        while cuts < ROUNDS {
            let limit = claim.limit.saturating_sub(given.jobs.len()).min(MOST_JOBS);
            let lines = shard.lines.get(queue, tasks);
            let draw = claim.draw;
            let asked =
                Asked { queue, tasks, worker: claim.worker.as_str(), limit, lease, draw, lines };
            let request = |known: &Known| Ok(asked.request(shard, known));
            let script = &shard.scripts.hot.claim;
            match shard.run("start jobs", script, now.into(), request).await {
                Ok(Some(answer)) => {
                    let part = self.take_answer(claim, answer, &mut given)?;
                    match part {
                        Part::Cut => cuts += 1,
                        Part::Whole(started) => {
                            if started < limit || given.jobs.len() >= claim.limit {
                                return Ok(given);
                            }
                        }
                    }
                }
                Ok(None) => {
                    given.next = None;
                    return Ok(given);
                }
                Err(error) if given.jobs.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        // The worker must receive the started jobs; the rest is left to the next claim.
        if !given.jobs.is_empty() {
            given.next = given.now.map(|now| NextDue { now, due: Some(now), expiry: None });
        }
        Ok(given)
    }

    /// Notes what a script did.
    fn take_answer(&self, claim: &Claim, mut answer: Answer, given: &mut Given) -> Result<Part> {
        let now = answer.now;
        let next = NextDue { now, due: answer.moment()?, expiry: answer.moment()? };
        let is_cut = answer.number()? == 1;
        // At least as new as what the script checked.
        let known = self.shard.known();
        given.now = Some(now);
        let count = answer.count()?;
        let mut jobs = Vec::new();
        for _ in 0..count {
            let id = job_of(&text(answer.next()?)?)?;
            let row = maybe_bytes(answer.next()?)?;
            let row = row.ok_or_else(|| corrupt(format_args!("job {id} started without a row")))?;
            match decode_job(id, &row, &known) {
                Ok(mut job) => {
                    let partition = job.partition.take();
                    jobs.push((claimed(&job)?, partition));
                }
                Err(error) => self.unreadable().push(error),
            }
        }
        self.shard.held.note_first_runs(claim, &jobs);
        let started = usize::try_from(count).unwrap_or(usize::MAX);
        given.jobs.extend(jobs.into_iter().map(|(job, _)| job));
        let lines = answer.values.map(text).collect::<Result<Vec<String>>>()?;
        // Where there was no room, the script did not look who comes next.
        if started > 0 || !lines.is_empty() {
            self.shard.lines.set(&claim.queue, &claim.tasks, lines);
        }
        given.next = (!is_cut).then_some(next);
        Ok(if is_cut { Part::Cut } else { Part::Whole(started) })
    }

    /// When something may start, of these tasks and within the limits of the queue; none where the
    /// step must be taken that knows all cases.
    pub(crate) async fn next_by_script(
        &self,
        now: Now,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<Option<NextDue>> {
        let (tasks, lines, draw) = (tasks.into(), Arc::default(), Draw::MIN);
        let asked = Asked { queue, tasks: &tasks, worker: "", limit: 0, lease: 0, draw, lines };
        let shard = &self.shard;
        let request = |known: &Known| Ok(asked.request(shard, known));
        let script = &shard.scripts.hot.next;
        match shard.run("look for due jobs", script, now.into(), request).await? {
            Some(mut answer) => {
                let (due, expiry) = (answer.moment()?, answer.moment()?);
                Ok(Some(NextDue { now: answer.now, due, expiry }))
            }
            None => Ok(None),
        }
    }
}

fn claimed(job: &Job) -> Result<ClaimedJob> {
    let no_lease = || corrupt(format_args!("job {} runs without a lease", job.id));
    ClaimedJob::of(job).ok_or_else(no_lease)
}

impl Asked<'_> {
    /// None where the settings or the lanes are not for a script.
    fn request(&self, shard: &Shard, known: &Known) -> Option<Request> {
        let mut lanes: Vec<(u32, &Lane)> = known
            .lanes()
            .filter(|(_, lane)| known.is_offered(lane, self.queue, self.tasks))
            .collect();
        if lanes.len() > MOST_LANES {
            return None;
        }
        lanes.sort_by_key(|(number, lane)| (Reverse(lane.priority), *number));
        let keys = &shard.keys;
        let mut numbered = shard.first_keys([
            keys.leases(),
            keys.counts(),
            keys.slots(),
            keys.runs(),
            keys.heads(self.queue),
            keys.starts(),
            keys.memories(),
            keys.expiry(),
            keys.begun(self.queue),
        ]);
        // The script finds lines by the order of their keys.
        for (number, _) in &lanes {
            numbered.number(keys.line(&lane_member(*number, None)));
        }
        for name in self.lines.iter() {
            numbered.number(keys.line(name));
        }
        let lanes = lanes.into_iter().map(|(number, lane)| {
            let (priority, task) = (i64::from(lane.priority), lane.task.as_str());
            list![lane_member(number, None), i64::from(number), priority, task]
        });
        let asked = vec![
            Item::from(self.limit),
            Item::from(self.lease),
            Item::from(self.worker),
            Item::from(self.queue.as_str()),
            Item::List(limits(&known.settings(self.queue))?),
            Item::List(lanes.collect()),
            Item::List(self.lines.iter().map(|name| Item::from(name.as_str())).collect()),
            Item::from(ahead_of(self.limit)),
            Item::List(remembered(known)?),
            Item::from_count(self.draw.get()),
        ];
        Some(Request { keys: numbered, asked })
    }
}

/// How many lines the script returns as candidates for the worker's next claim. Other claims take some
/// of them before that.
fn ahead_of(limit: usize) -> usize {
    if limit == 0 { 0 } else { limit.saturating_mul(4).saturating_add(32) }
}

/// What a queue is held to, as the script reads it; none where a period is too long for it, or the order
/// of its partitions is strict (R41).
fn limits(settings: &QueueSettings) -> Option<Vec<Item>> {
    if settings.is_strict() {
        return None;
    }
    let count = |limit: Option<u32>| limit.map_or(Item::NOTHING, |limit| i64::from(limit).into());
    let rate = |rate: Option<Rate>| {
        let Some(Rate { limit, period }) = rate else {
            return Some([Item::NOTHING, Item::NOTHING]);
        };
        Some([i64::from(limit).into(), exact(period)?.into()])
    };
    let of_settings =
        [settings.concurrency, settings.worker_concurrency, settings.partition_concurrency];
    let mut limits: Vec<Item> = of_settings.into_iter().map(count).collect();
    limits.extend(rate(settings.rate)?);
    limits.extend(rate(settings.partition_rate)?);
    limits.push(if settings.paused { Item::Number(1) } else { Item::NOTHING });
    Some(limits)
}

/// The shapes whose starts are remembered (R13), with their periods; none where one is too long.
fn remembered(known: &Known) -> Option<Vec<Item>> {
    let throttled = known.shapes().filter(|(_, shape)| shape.edge == Edge::Throttle);
    let with_period = throttled.filter_map(|(number, shape)| Some((number, shape.period?)));
    with_period.map(|(number, period)| Some(list![i64::from(number), exact(period)?])).collect()
}
