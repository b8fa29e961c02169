//! What must hold of every step and of every state. Properties have the numbers of docs/testing.md.

use std::collections::BTreeMap;

use quell_core::edge::Edge;
use quell_core::{
    ClaimedJob, Job, JobId, JobState, Lease, Receipt, Renewal, Settled, SettledAs, Store,
};
use stateright::Property;

use super::ghost::Known;
use super::model::{
    ATTEMPTS, Action, Answer, BACKOFF, End, LEASE, Moment, World, at, at_once, jobs,
};

/// A property and what broke it.
pub(super) type Broken = (&'static str, String);
pub(super) type Jobs = BTreeMap<JobId, Job>;

macro_rules! always {
    ($($name:literal),+) => {
        /// One property for each number.
        pub(super) fn properties() -> Vec<Property<World>> {
            vec![$(Property::always($name, |_: &World, moment: &Moment| {
                moment.broken.iter().all(|(name, _)| *name != $name)
            })),+]
        }
    };
}

always!(
    "P2", "P4", "P6", "P7a", "P7b", "P8", "P9", "P10", "P11", "P12", "P13", "P14", "P15", "P16",
    "P21", "P23", "P24"
);

/// One step before the judge.
pub(super) struct Case<'a> {
    pub(super) world: &'a World,
    pub(super) now: i64,
    pub(super) before: Jobs,
    pub(super) after: Jobs,
    /// Whether the step left everything as it was.
    pub(super) same: bool,
    pub(super) broken: Vec<Broken>,
}

/// What a step broke; brings the onlooker's memory up to date.
pub(super) fn judge(
    world: &World,
    last: &Moment,
    next: &mut Moment,
    action: &Action,
    answer: &Answer,
) -> Vec<Broken> {
    let by_id =
        |moment: &Moment| jobs(&moment.store()).into_iter().map(|job| (job.id, job)).collect();
    let mut case = Case {
        world,
        now: next.now,
        before: by_id(last),
        after: by_id(next),
        same: last.kept == next.kept,
        broken: Vec::new(),
    };
    next.ghost.follow(&case.after);
    case.step(last, next, action, answer);
    next.ghost.free_key(&case.after, next.now);
    case.moves(action);
    case.standing(next);
    if next.now == world.horizon && matches!(action, Action::Tick) && case.broken.is_empty() {
        case.drains(next);
    }
    case.broken
}

impl Case<'_> {
    pub(super) fn must(&mut self, name: &'static str, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            self.broken.push((name, why()));
        }
    }

    fn step(&mut self, last: &Moment, next: &mut Moment, action: &Action, answer: &Answer) {
        match (action, answer) {
            (Action::Trigger { key, dedup, delayed }, Answer::Receipt(receipt)) => {
                self.triggered(next, *key, *delayed, receipt);
                let job = receipt.job().filter(|_| receipt.trigger().is_some());
                if let (Some(until), Some(job)) = (dedup, job) {
                    next.ghost.hold = Some((job, *until, self.now));
                }
                let held = last.ghost.hold.filter(|_| dedup.is_some());
                let holder = held.map(|(job, ..)| last.ghost.home(job));
                let named = matches!(receipt, Receipt::Duplicate { .. }).then_some(receipt.job());
                self.must(
                    "P16",
                    named.flatten() == holder && (holder.is_none() || self.same),
                    || format!("{receipt:?} where the key's holder is {holder:?}"),
                );
            }
            (Action::Claim, Answer::Claimed(claimed)) => self.claimed(last, next, claimed),
            (Action::Renew(lease), Answer::Renewed(renewal)) => {
                let expected = Renewal::from(self.is_held(*lease).then(|| at(self.now + LEASE)));
                let is_lost = *renewal == Renewal::Lost;
                self.must("P10", *renewal == expected && (!is_lost || self.same), || {
                    format!("{lease:?} was renewed to {renewal:?}, not to {expected:?}")
                });
            }
            (Action::Settle(lease, end), Answer::Settled(settled)) => {
                self.settled(next, *lease, *end, settled);
            }
            (Action::Reap, Answer::Expired(expired)) => {
                for id in expired {
                    let successor = self.after.get(id).and_then(|job| job.absorbed_by);
                    // Workers of these worlds send no heartbeats: no expired lease counts, and none waits.
                    next.ghost.hold_back(successor.unwrap_or(*id), self.now);
                }
                let left = self.after.values().find(|job| self.is_expired(job)).map(|job| job.id);
                self.must("P7b", left.is_none(), || format!("{left:?} expired and was left"));
            }
            (_, Answer::Operated(done)) => self.operated(next, action, *done),
            (_, Answer::Nothing) => {}
            (action, answer) => panic!("{action:?} was answered with {answer:?}"),
        }
    }

    fn is_expired(&self, job: &Job) -> bool {
        job.state == JobState::Running && job.lease_until.is_none_or(|until| until <= at(self.now))
    }

    fn is_held(&self, lease: Lease) -> bool {
        self.before.get(&lease.job).is_some_and(|job| {
            job.state == JobState::Running && job.token == lease.token && !self.is_expired(job)
        })
    }

    fn open(&self, key: Option<&str>) -> Option<JobId> {
        let open = |job: &&Job| job.state == JobState::Scheduled && key_of(job) == key;
        self.before.values().find(open).filter(|_| key.is_some()).map(|job| job.id)
    }

    fn runs(&self, key: Option<&str>) -> bool {
        let runs = |job: &Job| job.state == JobState::Running && key_of(job) == key;
        key.is_some() && !self.world.debounce.overlap && self.before.values().any(runs)
    }

    fn triggered(
        &mut self,
        next: &mut Moment,
        key: Option<&'static str>,
        delayed: bool,
        receipt: &Receipt,
    ) {
        let Some(id) = receipt.trigger() else { return };
        let delay = self.world.delay.filter(|_| delayed);
        let asked = delay.map_or(i64::MIN, |delay| self.now + delay.as_secs().cast_signed());
        let known = Known { id, at: self.now, asked, covered_by: None, done: false };
        next.ghost.triggers.push(known);
        let (open, joined) = (self.open(key), matches!(receipt, Receipt::Debounced { .. }));
        let expected = joined.then_some(id.job);
        if self.world.debounce.edge == Edge::Trailing {
            self.must("P8", expected == open, || format!("{receipt:?} where {open:?} was open"));
        }
    }

    /// Whom a claim must hand out: the first that may start, if the queue lets anyone (R11, R30–R33).
    fn expected(&self, last: &Moment) -> Option<JobId> {
        let settings = at_once(last.store().queues()).unwrap().into_iter().next()?.settings;
        let running = self.before.values().filter(|job| job.state == JobState::Running).count();
        let full = settings.concurrency.is_some_and(|limit| running >= limit as usize);
        let may = |job: &&Job| {
            job.state == JobState::Scheduled
                && job.window.due_at <= at(self.now)
                && !self.runs(key_of(job))
        };
        let first = self.before.values().filter(may).min_by_key(|job| (job.window.due_at, job.id));
        first.filter(|_| !full && !settings.paused).map(|job| job.id)
    }

    fn claimed(&mut self, last: &Moment, next: &mut Moment, claimed: &[ClaimedJob]) {
        let expected = self.expected(last);
        let name = match (claimed.first(), expected) {
            (Some(_), None) => "P24",
            (None, Some(_)) => "P7b",
            _ => "P23",
        };
        let ids: Vec<JobId> = claimed.iter().map(|job| job.id).collect();
        self.must(name, ids == Vec::from_iter(expected), || {
            format!("a claim brought {ids:?}, not {expected:?}")
        });
        for job in claimed {
            let key = job.key.as_ref().map(|key| key.as_str().to_owned());
            self.must("P9", !self.runs(key.as_deref()), || {
                format!("{} starts beside another", job.id)
            });
            self.in_time(next, job);
            self.must("P12", (1..=ATTEMPTS).contains(&job.attempt), || format!("{job:?}"));
            if let Some(key) = key {
                next.ghost.started.insert(key, self.now);
            }
            let start = Some((job.id, job.token.get()));
            next.ghost.start(job.id, start);
        }
    }

    /// R6, R8, R13, R24: no start before the quiet period, the backoff or the throttle is over.
    fn in_time(&mut self, next: &Moment, job: &ClaimedJob) {
        let (world, now, ghost) = (self.world, self.now, &next.ghost);
        let not_before = ghost.not_before(job.id);
        let key = job.key.as_ref().map(|key| key.as_str().to_owned());
        let debounced = key.is_some() && world.debounce.edge == Edge::Trailing;
        let min = if debounced { self.secs(world.debounce.thresholds.min()) } else { 0 };
        let max = self.secs(world.debounce.thresholds.max());
        let quiet = ghost.own(job.id).map(|known| (known.at + min).max(known.asked)).max();
        let bound = ghost.own(job.id).map(|known| known.at + max).min().filter(|_| key.is_some());
        let full = world.debounce.max_triggers.is_some_and(|n| job.triggers >= u64::from(n));
        let free = full || ghost.flushed.contains(&job.id);
        let earliest = quiet.unwrap_or(now).min(bound.unwrap_or(i64::MAX));
        let before = key.and_then(|key| next.ghost.started.get(&key).copied());
        self.must("P6", free || now >= earliest, || {
            format!("job {} starts at {now}, before {earliest}", job.id)
        });
        self.must("P13", now >= not_before, || {
            format!("job {} starts at {now}, held back until {not_before}", job.id)
        });
        if world.debounce.edge == Edge::Throttle {
            let period = self.secs(world.debounce.thresholds.min());
            self.must("P6", before.is_none_or(|before| now >= before + period), || {
                format!("job {} starts at {now}, within the period from {before:?}", job.id)
            });
        }
    }

    pub(super) fn secs(&self, length: std::time::Duration) -> i64 {
        length.as_secs().cast_signed()
    }

    fn settled(&mut self, next: &mut Moment, lease: Lease, end: End, settled: &Settled) {
        let held = self.is_held(lease);
        let refused = settled.became == SettledAs::Refused;
        self.must("P10", refused != held && (held || self.same), || {
            format!("{lease:?} is held: {held}, and was answered {settled:?}")
        });
        if !held || refused {
            return;
        }
        let (Some(before), Some(after)) = (self.before.get(&lease.job), self.after.get(&lease.job))
        else {
            return self.must("P11", false, || format!("job {} is gone", lease.job));
        };
        let successor = self.open(key_of(before));
        let last = end == End::Failed && before.attempt >= ATTEMPTS && successor.is_none();
        let expected = match (end, successor) {
            (End::Succeeded, _) => JobState::Succeeded,
            (End::Permanent, _) => JobState::Dead,
            _ if last => JobState::Dead,
            (_, Some(_)) => JobState::Absorbed,
            (_, None) => JobState::Scheduled,
        };
        let free = matches!(end, End::Snoozed | End::Released);
        let charged = before.attempt - u32::from(free);
        let (state, attempt, absorbed_by) = (after.state, after.attempt, after.absorbed_by);
        self.must("P12", state == expected && attempt == charged, || {
            format!(
                "{end:?} of attempt {charged} made it {state}, attempt {attempt}, not {expected}"
            )
        });
        self.must("P14", absorbed_by == successor.filter(|_| state == JobState::Absorbed), || {
            format!("absorbed by {absorbed_by:?} while {successor:?} is open")
        });
        let wait = if matches!(end, End::Failed | End::Snoozed) { BACKOFF } else { 0 };
        if !state.is_ended() || state == JobState::Absorbed {
            next.ghost.hold_back(absorbed_by.unwrap_or(lease.job), self.now + wait);
        }
        if state == JobState::Succeeded {
            for known in &mut next.ghost.triggers {
                known.done |= known.covered_by == Some((lease.job, lease.token.get()));
            }
        }
    }

    fn operated(&mut self, next: &mut Moment, action: &Action, done: bool) {
        let state = |id: &JobId| self.before.get(id).map(|job| job.state);
        let allowed = match action {
            Action::Cancel(id) => {
                matches!(state(id), Some(JobState::Scheduled | JobState::Running))
            }
            Action::Redrive(id) => state(id) == Some(JobState::Dead),
            Action::CancelKey(key) | Action::Flush(key) => self.open(Some(key)).is_some(),
            _ => done,
        };
        self.must("P11", done == allowed && (done || self.same), || {
            format!("{action:?} was done: {done}, and it was allowed: {allowed}")
        });
        if let (Action::Redrive(id), true) = (action, done) {
            let successor = self.after.get(id).and_then(|job| job.absorbed_by);
            next.ghost.not_before.remove(id);
            next.ghost.hold_back(successor.unwrap_or(*id), self.now);
        }
        if let (Action::Flush(key), true) = (action, done) {
            next.ghost.flushed.extend(self.open(Some(key)));
        }
    }
}

pub(super) fn key_of(job: &Job) -> Option<&str> {
    job.key.as_ref().map(quell_core::Key::as_str)
}
