//! The state machine of a worker, without I/O.
//!
//! Whatever happens arrives as one [`Event`]; [`Machine::apply`] changes state and answers with
//! [`Command`]s for the runner. Only one thing happens at a time, so a test can feed it any
//! sequence. It knows no store and no clock: `now` is the worker's own monotonic time, and store
//! times are brought to it by the distance that the last answer showed, so both clocks may be wrong
//! (R38).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use quell_core::poll::{PollInterval, PollSettings};
use quell_core::{
    Claimed, Error, Lease, NextDue, Outcome, QueueName, Result, Settled, SettledAs, Settlement,
    Timestamp, Wakeup,
};
use tracing::warn;

use super::event::{Command, Event};
use super::poller::{Polled, Poller, StoreClock};
use super::ticker::Ticker;
use crate::metrics;
use crate::spans::{self, Label};
use handover::Handover;
use held::{ClaimCost, PENALTY, Waiting};
use pulse::Pulse;
use rest::{Rest, SAFETY};
use upkeep::{REAP_PAUSE, first_pause};

mod drain;
mod handover;
mod held;
mod leases;
mod pulse;
mod rest;
pub(crate) mod upkeep;

/// The most settlements in one store call.
const SETTLE_BATCH: usize = 4_000;
/// The wait before a store call that failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// The most concurrent renewals.
const RENEWALS: usize = 4;
/// The bounds a worker keeps.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) concurrency: usize,
    pub(crate) prefetch: usize,
    pub(crate) lease: Duration,
    /// Between two heartbeats.
    pub(crate) heartbeat: Duration,
    pub(crate) grace: Duration,
    pub(crate) poll: PollSettings,
    /// Whether the store wakes the worker whenever something is due, so that it may rest.
    pub(crate) rests: bool,
}

/// Where a held lease is in its short life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    Ended,
}

/// A lease that this worker holds.
#[derive(Debug)]
struct Held {
    label: Label,
    stage: Stage,
    /// The worker's own time after which the lease may have expired.
    until: Timestamp,
    /// Whether the handler was notified that the lease is lost.
    lost: bool,
    /// Whether its settlement failed alone and for good: it is renewed no more.
    doubtful: bool,
    /// Renewals in flight that name it.
    renewals: usize,
}

impl Held {
    fn new(label: Label, until: Timestamp) -> Self {
        Held { label, stage: Stage::Waiting, until, lost: false, doubtful: false, renewals: 0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Working,
    /// Attempts may end until the deadline; after it they are released. Without one they may go on.
    Draining {
        deadline: Option<Timestamp>,
    },
    /// Only settlements are left.
    Releasing {
        deadline: Timestamp,
    },
}

/// All the state of one worker.
#[derive(Debug)]
pub(crate) struct Machine {
    bounds: Bounds,
    phase: Phase,
    pollers: Vec<Poller>,
    next_poller: usize,
    /// Of queues with a rate: who is next, how many slots the last turn was for, and how many jobs
    /// have started since.
    next_turn: usize,
    turn: usize,
    starts_since_turn: usize,
    held: BTreeMap<Lease, Held>,
    /// When the first of the held leases may have expired, but for those known to be lost.
    lose_at: Option<Timestamp>,
    /// Jobs taken ahead of the slots, in the order in which they start.
    waiting: VecDeque<Waiting>,
    /// How many of them a claim of a queue with a rate has just brought: slots were kept for them.
    first: usize,
    running: usize,
    /// When an attempt started or ended last.
    moved_at: Timestamp,
    /// Until when nothing is taken ahead, and how long that is to be after the next release.
    hold_off: Timestamp,
    penalty: Duration,
    /// How many jobs to hold beyond those that run.
    ahead: usize,
    ended_since_claim: usize,
    claimed_at: Timestamp,
    claim_cost: ClaimCost,
    unsettled: Vec<Settlement>,
    settling: bool,
    settle_at: Timestamp,
    /// The most settlements of the next call: fewer after one that failed for good.
    settle_batch: usize,
    /// Renewals in flight: one that hangs must not cost the leases of the others.
    renewing: usize,
    renew_at: Option<Timestamp>,
    /// Leases that are to be renewed early: a cancelled job's is lost.
    checks: BTreeSet<Lease>,
    check_at: Timestamp,
    /// Leases whose last renewal returned no answer, and when to renew them again.
    unsure: BTreeSet<Lease>,
    ask_again_at: Timestamp,
    handover: Handover,
    pulse: Pulse,
    /// Whether an operator drains it, as the last heartbeat said (R29).
    drained: bool,
    rest: Rest,
    reaping: bool,
    reap_at: Option<Timestamp>,
    reaped_at: Timestamp,
    pruning: bool,
    prune_at: Timestamp,
    ticker: Ticker,
    /// Store time minus worker time, in microseconds, as the last answer showed it.
    store_ahead: i64,
    random: fastrand::Rng,
}

impl Machine {
    /// The worker claims from `queues`, and looks for expired leases in those and in `watched`.
    pub(crate) fn new(
        bounds: Bounds,
        queues: Vec<QueueName>,
        watched: Vec<QueueName>,
        now: Timestamp,
        seed: u64,
    ) -> Self {
        queues.iter().for_each(|queue| metrics::interval(queue, bounds.poll.base));
        let poller =
            |queue, claims| Poller::new(queue, PollInterval::new(bounds.poll), now, claims);
        let claimed = queues.into_iter().map(|queue| poller(queue, true));
        let pollers =
            claimed.chain(watched.into_iter().map(|queue| poller(queue, false))).collect();
        Machine {
            phase: Phase::Working,
            pollers,
            next_poller: 0,
            next_turn: 0,
            turn: 0,
            starts_since_turn: 0,
            held: BTreeMap::new(),
            lose_at: None,
            waiting: VecDeque::new(),
            first: 0,
            running: 0,
            moved_at: now,
            hold_off: now,
            penalty: PENALTY,
            ahead: 0,
            ended_since_claim: 0,
            claimed_at: now,
            claim_cost: ClaimCost::UNKNOWN,
            unsettled: Vec::new(),
            settling: false,
            settle_at: now,
            settle_batch: SETTLE_BATCH,
            renewing: 0,
            renew_at: None,
            checks: BTreeSet::new(),
            check_at: now,
            unsure: BTreeSet::new(),
            ask_again_at: now,
            handover: Handover::new(now),
            pulse: Pulse::new(bounds.heartbeat, now),
            drained: false,
            rest: Rest::new(bounds.rests, now),
            reaping: false,
            reap_at: Some(now),
            reaped_at: now.before(REAP_PAUSE),
            pruning: false,
            prune_at: now + first_pause(seed),
            ticker: Ticker::new(if bounds.rests { SAFETY } else { bounds.poll.base }, now),
            store_ahead: 0,
            random: fastrand::Rng::with_seed(seed),
            bounds,
        }
    }

    /// Takes an event and returns the commands that follow from it.
    pub(crate) fn apply(&mut self, event: Event, now: Timestamp) -> Vec<Command> {
        let mut commands = Vec::new();
        match event {
            Event::Woken(wakeup) => self.on_woken(&wakeup, now),
            Event::Tick => {}
            Event::Claimed { queue, limit, asked_at, answer } => {
                self.on_claimed(queue, limit, asked_at, answer, now);
            }
            Event::Looked { queues, asked_at, answer } => {
                self.on_looked(&queues, asked_at, answer, now);
            }
            Event::Ended(settlements) => self.on_ended(settlements, now),
            Event::HandedOver(leases) => self.on_handed_over(leases, now),
            Event::Extended { leases, answer } => self.on_extended(&leases, answer, now),
            Event::Settled { sent, answer } => self.on_settled(sent, answer, now),
            Event::Renewed { leases, asked_at, answer } => {
                self.on_renewed(&leases, asked_at, answer, now, &mut commands);
            }
            Event::Beaten(answer) => self.on_beaten(answer, now),
            Event::Left(answer) => self.rest.left(answer, now),
            Event::Reaped(answer) => self.on_reaped(answer, now),
            Event::Pruned { asked_at, answer } => self.on_pruned(answer, asked_at, now),
            Event::Ticked { asked_at, answer } => self.on_ticked(&answer, asked_at, now),
            Event::Drain => self.on_drain(),
            Event::Shutdown => self.on_shutdown(now),
        }
        self.plan(now, &mut commands);
        commands
    }

    /// When to apply a [`Event::Tick`], at the latest.
    pub(crate) fn next_wake(&self) -> Option<Timestamp> {
        let mut wakes = vec![];
        match self.phase {
            Phase::Working => {
                if self.wants_more() && !self.drained {
                    let (room, slots) = (self.room(), self.slots());
                    let has_room = |poller: &Poller| room > 0 && (slots > 0 || !poller.rated);
                    let idle = self.pollers.iter().filter(|poller| poller.is_free());
                    wakes.extend(idle.filter(|idle| has_room(idle)).map(|poller| poller.look_at));
                }
                wakes.extend(self.waiting.front().map(|one| self.release_at(one)));
                wakes.extend((self.rest.is_up() && !self.pruning).then_some(self.prune_at));
                wakes.extend(self.reap_at.filter(|_| !self.reaping && self.is_seen()));
                wakes.extend(self.ticker.next_wake());
                // While a heartbeat is sent it cannot rest: a time that has passed would keep it
                // busy.
                wakes.extend(self.rest.next_wake().filter(|_| !self.pulse.is_sending()));
            }
            Phase::Draining { deadline } => wakes.extend(deadline),
            Phase::Releasing { deadline } => wakes.push(deadline),
        }
        wakes.extend(self.pulse.next_wake().filter(|_| self.rest.is_up()));
        if !self.held.is_empty() {
            wakes.extend(self.next_renewal());
            wakes.extend(self.lose_at);
        }
        wakes.extend(self.next_handover());
        if !self.unsettled.is_empty() && !self.settling {
            wakes.push(self.settle_at);
        }
        wakes.into_iter().min()
    }

    /// Whether everything is over and the worker may return.
    pub(crate) fn is_done(&self) -> bool {
        let stopping = self.phase != Phase::Working;
        let claiming = self.pollers.iter().any(|poller| !poller.is_free());
        stopping && self.held.is_empty() && !claiming && !self.settling
    }

    /// The number of handlers, if nothing else is in flight. A pause after the
    /// store failed is a rest: it ends when time goes on.
    pub(crate) fn at_rest(&self, now: Timestamp) -> Option<usize> {
        let claiming = self.pollers.iter().any(|poller| !poller.is_free());
        let reporting = self.pulse.is_sending() || self.rest.is_leaving();
        let upkeep = self.reaping || self.pruning || self.ticker.is_asking() || reporting;
        let busy =
            claiming || self.settling || !self.handover.is_done() || self.renewing > 0 || upkeep;
        let pausing = self.unsettled.is_empty() || now < self.settle_at;
        (!busy && pausing).then_some(self.running)
    }

    /// The queue behind an index that a command named.
    pub(crate) fn queue(&self, index: usize) -> Option<&QueueName> {
        self.pollers.get(index).map(|poller| &poller.queue)
    }

    /// The worker's time as the store would say it.
    pub(crate) fn store_time(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(now.as_micros().saturating_add(self.store_ahead))
    }

    fn local_time(&self, store_time: Timestamp) -> Timestamp {
        Timestamp::from_micros(store_time.as_micros().saturating_sub(self.store_ahead))
    }

    /// How many more jobs the worker may hold.
    fn room(&self) -> usize {
        let reserved: usize = self.pollers.iter().filter_map(|poller| poller.claiming).sum();
        let capacity = self.bounds.concurrency.saturating_add(self.ahead);
        capacity.saturating_sub(self.running + self.waiting.len() + reserved)
    }

    /// Whether what waits will soon be gone: a larger claim costs no more than a small one.
    fn wants_more(&self) -> bool {
        self.waiting.len() <= self.ahead / 2
    }

    fn on_woken(&mut self, wakeup: &Wakeup, now: Timestamp) {
        if let Some(cancelled) = wakeup.cancelled {
            self.check(cancelled);
            return;
        }
        let at = self.local_time(wakeup.due).max(now);
        if wakeup.queue.is_none() {
            self.ticker.wake(at);
        }
        for poller in &mut self.pollers {
            if wakeup.queue.as_ref().is_some_and(|queue| *queue != poller.queue) {
                continue;
            }
            // Its work is another's. Where the store announces the ends of leases, this may be one.
            if !poller.claims && !self.bounds.rests {
                continue;
            }
            poller.wake(wakeup.due, at);
        }
    }

    fn on_claimed(
        &mut self,
        queue: usize,
        limit: usize,
        asked_at: Timestamp,
        answer: Result<Claimed>,
        now: Timestamp,
    ) {
        if let Ok(claimed) = &answer {
            self.learn_store_time(claimed.next.now, asked_at);
        }
        let polled = self.poll_again(queue, limit, &answer, now);
        let queue = self.queue(queue).cloned();
        let (Some(claimed), Some(queue)) = (polled.and(answer.ok()), queue) else { return };
        self.look_for_expired(&claimed.next);
        if !claimed.jobs.is_empty() {
            self.claim_cost.learn(now.since(asked_at));
        }
        let until = asked_at + self.bounds.lease;
        for job in &claimed.jobs {
            let (task, queue) = (job.task.clone(), queue.clone());
            let label = Label { task, queue, attempt: job.attempt };
            let lease = Lease { job: job.id, token: job.token };
            self.held.insert(lease, Held::new(label, until));
        }
        let mut arrived = claimed.jobs.into_iter().map(|job| Waiting { job, since: now });
        if claimed.rated {
            // Slots were kept for them: they have started.
            let free = self.bounds.concurrency.saturating_sub(self.running + self.kept_slots());
            let mut first: VecDeque<Waiting> = arrived.by_ref().take(free).collect();
            self.first = first.len();
            std::mem::swap(&mut self.waiting, &mut first);
            self.waiting.extend(first.into_iter().chain(arrived));
        } else {
            self.waiting.extend(arrived);
        }
        self.foresee_losses();
        if !self.held.is_empty() && self.renew_at.is_none() {
            self.renew_at = Some(asked_at + self.bounds.lease / 3);
        }
        if self.phase != Phase::Working || self.drained {
            self.release(self.waiting.len());
        }
    }

    /// Adapts the poll interval and sets when the queue is looked at again (R34, R35).
    fn poll_again(
        &mut self,
        queue: usize,
        limit: usize,
        answer: &Result<Claimed>,
        now: Timestamp,
    ) -> Option<()> {
        let random = self.random.f64();
        let (clock, wakes) = (self.clock(), self.rest.wakes());
        let poller = self.pollers.get_mut(queue)?;
        poller.claiming = None;
        poller.limited = false;
        poller.polled(&Polled::of(answer), now, random);
        match answer {
            Ok(claimed) => {
                poller.rated = claimed.rated;
                metrics::polled(&poller.queue, claimed.jobs.len());
                let is_full = claimed.jobs.len() >= limit;
                match claimed.next.due {
                    _ if is_full => poller.look_by(now),
                    Some(due) if due <= claimed.next.now => {
                        poller.limited = true;
                        if poller.freed {
                            poller.look_by(now);
                        }
                    }
                    due => {
                        if wakes {
                            poller.trust(SAFETY, now, random);
                        }
                        if let Some(due) = due {
                            poller.look_by(clock.local(due).max(now));
                        }
                    }
                }
            }
            Err(error) => poller.failed(error),
        }
        poller.take_hint(&clock, now);
        Some(())
    }

    /// Nothing was known to be due in these queues; now the store has been asked (R34, R35). They
    /// are looked at together again, when the last of them would be.
    fn on_looked(
        &mut self,
        queues: &[usize],
        asked_at: Timestamp,
        answer: Result<Vec<NextDue>>,
        now: Timestamp,
    ) {
        if let Some(next) = answer.as_ref().ok().and_then(|answers| answers.first()) {
            self.learn_store_time(next.now, asked_at);
        }
        if let Err(error) = &answer {
            warn!(%error, queues = queues.len(), "poll failed, trying again");
        }
        let clock = self.clock();
        let (polled, answers) = (Polled::of(&answer), answer.unwrap_or_default());
        let mut together = now;
        for index in queues {
            let random = self.random.f64();
            let Some(poller) = self.pollers.get_mut(*index) else { continue };
            poller.looking = false;
            let mut next = poller.polled(&polled, now, random);
            if self.rest.wakes() && !answers.is_empty() {
                next = poller.trust(SAFETY, now, random);
            }
            together = together.max(next);
        }
        for (place, index) in queues.iter().enumerate() {
            let Some(poller) = self.pollers.get_mut(*index) else { continue };
            poller.look_at = together;
            if let Some(next) = answers.get(place) {
                metrics::polled(&poller.queue, 0);
                if let Some(due) = next.due {
                    let at = if due <= next.now { now } else { clock.local(due).max(now) };
                    poller.look_by(at);
                }
            }
            poller.take_hint(&clock, now);
        }
        answers.iter().for_each(|next| self.look_for_expired(next));
    }

    fn clock(&self) -> StoreClock {
        StoreClock { ahead: self.store_ahead }
    }

    /// The store answered some time after it was asked: taking the moment of asking makes the
    /// worker look early rather than late, and looking early costs one more look.
    fn learn_store_time(&mut self, store_now: Timestamp, asked_at: Timestamp) {
        self.store_ahead = store_now.as_micros().saturating_sub(asked_at.as_micros());
    }

    fn on_ended(&mut self, settlements: Vec<Settlement>, now: Timestamp) {
        self.moved_at = now;
        for settlement in settlements {
            let Some(held) = self.held.get_mut(&settlement.lease) else { continue };
            // A handler that was released after the grace time may still report its end.
            if held.stage == Stage::Running {
                held.stage = Stage::Ended;
                self.running = self.running.saturating_sub(1);
                self.ended_since_claim = self.ended_since_claim.saturating_add(1);
                self.unsettled.push(settlement);
            }
        }
    }

    fn on_settled(&mut self, sent: Vec<Settlement>, answer: Result<Vec<Settled>>, now: Timestamp) {
        self.settling = false;
        match answer {
            Ok(settled) => {
                self.settle_batch = self.settle_batch.saturating_mul(2).min(SETTLE_BATCH);
                for (place, one) in settled.into_iter().enumerate() {
                    let is_its = |sent: &&Settlement| sent.lease == one.lease;
                    let asked = sent.get(place).filter(is_its);
                    let asked = asked.or_else(|| sent.iter().find(is_its));
                    if let (Some(held), Some(asked)) = (self.held.remove(&one.lease), asked) {
                        spans::settled(one.lease.job, &held.label, &asked.outcome, one.became);
                    }
                    if one.became == SettledAs::Refused {
                        metrics::lease_lost();
                        let (job, token) = (one.lease.job, one.lease.token);
                        warn!(%job, %token, "lease was lost: what the attempt reported does not count");
                    }
                }
                self.look_at_limited(now);
            }
            Err(error) => self.settle_again(sent, &error, now),
        }
        self.foresee_losses();
    }

    /// A settlement freed a slot, of the queue or of a key: a job that waits for the limit may
    /// start.
    fn look_at_limited(&mut self, now: Timestamp) {
        for poller in &mut self.pollers {
            if poller.limited {
                poller.look_by(now);
            }
            poller.freed = poller.claiming.is_some();
        }
    }

    /// Settlements are fenced, so sending one twice is safe; one whose lease has expired is
    /// dropped, and the job runs again (R21).
    ///
    /// A call that failed for good, or whose outcome is unknown, is sent again in halves until the
    /// settlement at fault is alone: it harms no other.
    fn settle_again(&mut self, sent: Vec<Settlement>, error: &Error, now: Timestamp) {
        let is_alone = sent.len() == 1;
        let is_at_fault = is_alone && !error.is_retryable();
        let hopeless = is_at_fault && !error.is_unknown_outcome();
        if !error.is_retryable() {
            self.settle_batch = (sent.len() / 2).max(1);
        }
        let held = &mut self.held;
        let (keep, dropped): (Vec<_>, Vec<_>) = sent
            .into_iter()
            .partition(|one| !hopeless && held.get(&one.lease).is_some_and(|h| now < h.until));
        for one in &dropped {
            held.remove(&one.lease);
        }
        warn!(%error, kept = keep.len(), dropped = dropped.len(), "attempts could not be settled");
        if is_at_fault {
            // Behind the others, and for as long as its lease holds.
            for one in &keep {
                if let Some(held) = held.get_mut(&one.lease) {
                    held.doubtful = true;
                }
            }
            self.unsettled.extend(keep);
        } else {
            self.unsettled.splice(0..0, keep);
        }
        self.settle_at = now + RETRY_PAUSE;
    }

    fn plan(&mut self, now: Timestamp, commands: &mut Vec<Command>) {
        self.plan_losses(now, commands);
        self.plan_stop(now, commands);
        self.plan_rest(now, commands);
        if self.phase == Phase::Working {
            if !self.drained {
                self.plan_turn(now, commands);
                self.plan_starts(now, commands);
                self.plan_releases(now);
                self.plan_claims(now, commands);
            }
            self.plan_upkeep(now, commands);
        }
        self.plan_settle(now, commands);
        self.plan_handover(now, commands);
        self.plan_renew(now, commands);
    }

    /// R29: after the grace time, attempts are released without being spent.
    fn plan_stop(&mut self, now: Timestamp, commands: &mut Vec<Command>) {
        match self.phase {
            Phase::Draining { deadline: Some(deadline) } if deadline <= now => {
                for (lease, held) in &mut self.held {
                    if held.stage == Stage::Running {
                        held.stage = Stage::Ended;
                        commands.push(Command::Cancel(*lease));
                        commands.push(Command::Abort(*lease));
                        let outcome = Outcome::Released;
                        self.unsettled.push(Settlement { lease: *lease, outcome });
                    }
                }
                self.running = 0;
                self.phase = Phase::Releasing { deadline: now + self.bounds.lease };
            }
            Phase::Releasing { deadline } if deadline <= now => {
                warn!(leases = self.held.len(), "store did not answer: leases are left to expire");
                self.held.clear();
                self.unsettled.clear();
                self.settling = false;
                for poller in &mut self.pollers {
                    (poller.claiming, poller.looking) = (None, false);
                }
            }
            Phase::Working | Phase::Draining { .. } | Phase::Releasing { .. } => {}
        }
    }

    fn plan_claims(&mut self, now: Timestamp, commands: &mut Vec<Command>) {
        if !self.wants_more() {
            return;
        }
        self.set_ahead(now);
        if self.room() > 0 {
            self.plan_look(now, commands);
        }
        let queues = self.pollers.len();
        for step in 0..queues {
            let index = (self.next_poller + step) % queues;
            let (room, slots) = (self.room(), self.slots());
            if room == 0 {
                self.next_poller = index;
                return;
            }
            let Some(poller) = self.pollers.get_mut(index) else { return };
            if !poller.claims || !poller.is_free() || now < poller.look_at {
                continue;
            }
            let limit = if poller.rated { room.min(slots) } else { room };
            if limit == 0 {
                continue;
            }
            poller.claim(limit);
            commands.push(Command::Claim { queue: index, limit });
            self.ended_since_claim = 0;
            self.claimed_at = now;
        }
    }

    /// Several queues in which nothing is known to be due are looked at in one call.
    fn plan_look(&mut self, now: Timestamp, commands: &mut Vec<Command>) {
        let idle = |poller: &Poller| poller.is_free() && poller.polls;
        let is_time = self.pollers.iter().any(|poller| idle(poller) && poller.look_at <= now);
        let is_single = self.pollers.len() < 2 && self.pollers.iter().all(|poller| poller.claims);
        if is_single || !is_time {
            return;
        }
        let mut queues = Vec::new();
        for (index, poller) in self.pollers.iter_mut().enumerate() {
            if idle(poller) && (poller.look_at <= now || poller.is_calm(now)) {
                poller.looking = true;
                queues.push(index);
            }
        }
        commands.push(Command::Look(queues));
    }

    /// One settlement call is in flight at a time; the next gathers meanwhile.
    fn plan_settle(&mut self, now: Timestamp, commands: &mut Vec<Command>) {
        if self.settling || self.unsettled.is_empty() || now < self.settle_at {
            return;
        }
        self.settling = true;
        let rest = self.unsettled.split_off(self.unsettled.len().min(self.settle_batch));
        commands.push(Command::Settle(std::mem::replace(&mut self.unsettled, rest)));
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
