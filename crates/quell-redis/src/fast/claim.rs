//! Starting jobs of a queue without limits by one script (R28, R30).

use std::cmp::Reverse;

use quell_core::edge::Edge;
use quell_core::{
    Claim, Claimed, ClaimedJob, Job, JobId, LeaseToken, NextDue, QueueSettings, Result, Timestamp,
};
use redis::Value;

use super::{Answer, Request, exact};
use crate::keys::slots_of;
use crate::known::{Known, Lane};
use crate::look::{job_of, maybe_bytes, text};
use crate::pack::{Item, list};
use crate::row::{corrupt, decode_job};
use crate::shard::Shard;
use crate::store::ShardStore;
use crate::write::lane_member;

/// Jobs that one script starts: the server does nothing else meanwhile.
const MOST_JOBS: usize = 1_000;
/// Lanes that one script looks at.
const MOST_LANES: usize = 200;

impl ShardStore {
    /// None where the step must be taken that knows all cases.
    pub(crate) async fn claim_fast(
        &self,
        now: Option<Timestamp>,
        claim: &Claim,
    ) -> Result<Option<Claimed>> {
        if self.history.is_some() {
            return Ok(None);
        }
        let mut started: Option<Claimed> = None;
        loop {
            let so_far = started.as_ref().map_or(0, |started| started.jobs.len());
            let left = claim.limit.saturating_sub(so_far);
            let part = Claim { limit: left.min(MOST_JOBS), ..claim.clone() };
            let next = self.claim_once(now, &part).await;
            let Some(mut before) = started.take() else {
                match next? {
                    Some(next) if next.jobs.len() == MOST_JOBS => started = Some(next),
                    next => return Ok(next),
                }
                continue;
            };
            // They have started: who cannot be told what comes next is to look at once.
            let Ok(Some(next)) = next else {
                before.next.due = Some(before.now);
                return Ok(Some(before));
            };
            let is_full = next.jobs.len() == MOST_JOBS;
            before.jobs.extend(next.jobs);
            let all = Claimed { jobs: before.jobs, ..next };
            if !is_full {
                return Ok(Some(all));
            }
            started = Some(all);
        }
    }

    async fn claim_once(&self, now: Option<Timestamp>, claim: &Claim) -> Result<Option<Claimed>> {
        let shard = &self.shard;
        let script = &shard.scripts.fast.claim;
        let request = |known: &Known| Ok(request(shard, known, claim));
        match shard.run("start jobs", script, now.into(), request).await? {
            Some(answer) => self.decode_claimed(claim, answer).map(Some),
            None => Ok(None),
        }
    }

    fn decode_claimed(&self, claim: &Claim, mut answer: Answer) -> Result<Claimed> {
        let now = answer.now;
        let next = NextDue { now, due: answer.moment()?, lapse: answer.moment()? };
        // At least as new as what the script checked.
        let known = self.shard.known();
        let mut jobs = Vec::with_capacity(answer.values.len() / 2);
        while let Some(id) = answer.values.next() {
            let id = job_of(&text(id)?)?;
            let row = maybe_bytes(answer.values.next().unwrap_or(Value::Nil))?;
            let row = row.ok_or_else(|| corrupt(format_args!("job {id} started without a row")))?;
            let mut job = decode_job(id, &row, &known)?;
            let partition = job.partition.take();
            jobs.push((claimed(id, job)?, partition));
        }
        self.shard.held.note_first_runs(claim, now, &jobs);
        let jobs = jobs.into_iter().map(|(job, _)| job).collect();
        Ok(Claimed { now, jobs, next })
    }
}

fn claimed(id: JobId, job: Job) -> Result<ClaimedJob> {
    let lease_until = job.lease_until;
    Ok(ClaimedJob {
        id,
        token: LeaseToken::new(job.starts),
        task: job.task,
        key: job.key,
        payload: job.payload,
        attempt: job.attempt,
        failures: job.failures,
        lapses: job.lapses,
        triggers: job.window.triggers,
        first_at: job.window.first_at,
        due_at: job.window.due_at,
        lease_until: lease_until
            .ok_or_else(|| corrupt(format_args!("job {id} runs without a lease")))?,
    })
}

/// Whether the settings keep nothing back.
fn is_open(settings: &QueueSettings) -> bool {
    !settings.paused && !settings.limits_concurrency() && !settings.limits_rate()
}

fn request(shard: &Shard, known: &Known, claim: &Claim) -> Option<Request> {
    let length = exact(claim.lease)?;
    let mut lanes: Vec<(u32, &Lane)> = known
        .lanes()
        .filter(|(_, lane)| known.is_offered(lane, &claim.queue, &claim.tasks))
        .collect();
    if !is_open(&known.settings(&claim.queue)) || lanes.len() > MOST_LANES {
        return None;
    }
    lanes.sort_by_key(|(number, lane)| (Reverse(lane.priority), *number));
    let keys = &shard.keys;
    let mut numbered = shard.first_keys([
        keys.leases(),
        keys.counts(),
        keys.slots(),
        keys.runs(),
        keys.heads(&claim.queue),
    ]);
    let lanes = lanes.into_iter().map(|(number, lane)| {
        let name = lane_member(number, None);
        let line = numbered.number(keys.line(&name));
        list![name, i64::from(number), line, i64::from(lane.priority), lane.task.as_str()]
    });
    let lanes = lanes.collect();
    let slots = slots_of(&claim.queue, Some(&claim.worker), None);
    let throttled = known.shapes().filter(|(_, shape)| shape.edge == Edge::Throttle);
    let asked = vec![
        Item::from(claim.limit),
        Item::from(length),
        Item::from(claim.worker.as_str()),
        Item::from(claim.queue.as_str()),
        Item::List(slots.into_iter().map(Item::from).collect()),
        Item::List(lanes),
        Item::List(throttled.map(|(number, _)| Item::from(i64::from(number))).collect()),
    ];
    Some(Request { keys: numbered, asked })
}
