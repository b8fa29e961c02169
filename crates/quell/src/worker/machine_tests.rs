//! Sequences of events for the machine.

use super::held::{HOLD, STALL};
use super::leases::CHECK_PAUSE;
use super::*;
use quell_core::heartbeat::Beaten;
use quell_core::trace::Traces;
use quell_core::{
    Cancelled, ClaimedJob, ErrorKind, JobId, Key, LeaseToken, Payload, Pruned, Renewal, TaskName,
};

const LEASE: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(10);

/// A machine with a clock of its own.
struct Scenario {
    machine: Machine,
    now: Timestamp,
    next_job: u64,
    /// Whether claims are answered as by a queue with a rate.
    rated: bool,
    /// What a claim takes.
    took: Duration,
}

impl Scenario {
    fn new(concurrency: usize, prefetch: usize) -> Self {
        Scenario::of_queues(1, concurrency, prefetch)
    }

    fn of_queues(queues: usize, concurrency: usize, prefetch: usize) -> Self {
        Scenario::watching(queues, 0, concurrency, prefetch)
    }

    /// The same with queues that the worker watches and claims nothing from, numbered after its own.
    fn watching(queues: usize, watched: usize, concurrency: usize, prefetch: usize) -> Self {
        let now = Timestamp::from_secs(1_000);
        let poll = PollSettings::default();
        // One heartbeat as the scenario begins; a test of heartbeats sets another interval.
        let heartbeat = Duration::MAX;
        let (lease, grace, rests) = (LEASE, GRACE, false);
        let bounds = Bounds { concurrency, prefetch, lease, heartbeat, grace, poll, rests };
        let name = |n: usize| QueueName::new(format!("q{n}")).unwrap();
        let watched = (queues..queues + watched).map(name).collect();
        let queues = (0..queues).map(name).collect();
        let (machine, took) = (Machine::new(bounds, queues, watched, now, 7), Duration::ZERO);
        Scenario { machine, now, next_job: 1, rated: false, took }
    }

    /// Applies the event; a heartbeat is answered at once.
    fn apply(&mut self, event: Event) -> Vec<Command> {
        let mut commands = self.machine.apply(event, self.now);
        let beats = commands.extract_if(.., |one| matches!(one, Command::Heartbeat { .. })).count();
        if beats > 0 {
            commands.extend(self.machine.apply(Event::Beaten(Ok(Beaten::default())), self.now));
        }
        commands
    }

    /// Lets time pass to the next wake and ticks.
    fn wake(&mut self) -> Vec<Command> {
        self.now = self.machine.next_wake().expect("the machine waits for something").max(self.now);
        self.apply(Event::Tick)
    }

    /// Answers the claim in flight with this many jobs, in the worker's own time.
    fn claimed(&mut self, jobs: usize, limit: usize, due: Option<Timestamp>) -> Vec<Command> {
        let jobs = (0..jobs).map(|_| self.job()).collect();
        let next = NextDue { now: self.now, due, expiry: None };
        let claimed = Claimed { now: self.now, jobs, next, rated: self.rated };
        let (asked_at, answer) = (self.now.before(self.took), Ok(claimed));
        self.apply(Event::Claimed { queue: 0, limit, asked_at, answer })
    }

    /// Answers a look at these queues: in each, something is due then.
    fn looked(&mut self, queues: &[usize], due: &[Option<Timestamp>]) -> Vec<Command> {
        let next = |due: &Option<Timestamp>| NextDue { now: self.now, due: *due, expiry: None };
        let (asked_at, answer) = (self.now, Ok(due.iter().map(next).collect()));
        self.apply(Event::Looked { queues: queues.to_vec(), asked_at, answer })
    }

    fn job(&mut self) -> ClaimedJob {
        let id = JobId::new(self.next_job);
        self.next_job += 1;
        ClaimedJob {
            id,
            token: LeaseToken::new(1),
            task: TaskName::new("t").unwrap(),
            key: Some(Key::new("k").unwrap()),
            payload: Payload::from_stored("1"),
            attempt: 1,
            failures: 0,
            crashes: 0,
            triggers: 1,
            first_at: self.now,
            due_at: self.now,
            lease_until: self.now + LEASE,
            traces: Traces::default(),
        }
    }

    /// The jobs that run.
    fn running(&self) -> Vec<u64> {
        let running = self.machine.held.iter().filter(|(_, held)| held.stage == Stage::Running);
        running.map(|(lease, _)| lease.job.get()).collect()
    }

    fn ended(&mut self, jobs: &[u64]) -> Vec<Command> {
        self.apply(Event::Ended(jobs.iter().map(|job| succeeded(*job)).collect()))
    }

    fn settled(&mut self, sent: Vec<Settlement>) -> Vec<Command> {
        let became = SettledAs::Succeeded;
        let answer = Ok(sent.iter().map(|one| Settled { lease: one.lease, became }).collect());
        self.apply(Event::Settled { sent, answer })
    }

    /// Ends the upkeep that a fresh worker starts with.
    fn started(concurrency: usize, prefetch: usize) -> (Self, usize) {
        let mut scenario = Scenario::new(concurrency, prefetch);
        let commands = scenario.apply(Event::Tick);
        assert!(commands.iter().any(|command| matches!(command, Command::Reap)));
        scenario.apply(Event::Reaped(Ok(vec![])));
        (scenario, claim_limit(&commands).expect("a fresh worker claims"))
    }
}

fn lease(job: u64) -> Lease {
    Lease { job: JobId::new(job), token: LeaseToken::new(1) }
}

fn succeeded(job: u64) -> Settlement {
    Settlement { lease: lease(job), outcome: Outcome::succeeded() }
}

fn claim_limit(commands: &[Command]) -> Option<usize> {
    commands.iter().find_map(|command| match command {
        Command::Claim { limit, .. } => Some(*limit),
        _ => None,
    })
}

fn starts(commands: &[Command]) -> usize {
    commands.iter().filter(|command| matches!(command, Command::Start(_))).count()
}

fn settle(command: Command) -> Option<Vec<Settlement>> {
    match command {
        Command::Settle(sent) => Some(sent),
        _ => None,
    }
}

/// What is settled; nothing where there is no such call.
fn settlements_in(commands: &[Command]) -> Vec<Settlement> {
    let sent = commands.iter().find_map(|command| match command {
        Command::Settle(sent) => Some(sent.clone()),
        _ => None,
    });
    sent.unwrap_or_default()
}

fn settlements(commands: Vec<Command>) -> Vec<Settlement> {
    commands.into_iter().find_map(settle).expect("a settlement call")
}

#[test]
fn r31_a_worker_never_claims_past_its_free_slots_and_prefetch() {
    let (mut scenario, limit) = Scenario::started(4, 100);
    assert_eq!(limit, 4, "nothing has finished yet, so nothing is taken ahead");
    let commands = scenario.claimed(4, 4, None);
    assert_eq!(starts(&commands), 4);
    assert_eq!(claim_limit(&commands), None, "no slot is free");
    scenario.now = scenario.now + Duration::from_millis(25);
    let commands = scenario.ended(&[1, 2]);
    assert_eq!(claim_limit(&commands), Some(6), "two free slots, and what it ends in 50 ms");
    scenario.claimed(0, 6, None);
    scenario.now = scenario.now + Duration::from_secs(60);
    let commands = scenario.ended(&[3]);
    assert_eq!(claim_limit(&commands), Some(3), "with slow handlers, free slots only");
}

#[test]
fn r08_r31_what_is_taken_ahead_follows_what_claims_take() {
    // In microseconds, and how long the jobs last that are taken ahead, in milliseconds.
    for (took, lasts) in [(100, 10), (400, 20), (1_000, 50), (20_000, 75), (1_000_000, 75)] {
        let (mut scenario, mut limit) = Scenario::started(2, 1_000);
        scenario.took = Duration::from_micros(took);
        let mut ahead = 0;
        // Two jobs a millisecond.
        for _ in 0..100 {
            let more = Some(scenario.now);
            scenario.claimed(2, limit, more);
            scenario.now = scenario.now + Duration::from_millis(1);
            let running = scenario.running();
            let commands = scenario.ended(&running);
            limit = claim_limit(&commands).expect("two slots are free");
            ahead = limit - 2;
            let sent = commands.into_iter().find_map(settle);
            scenario.settled(sent.unwrap_or_default());
        }
        assert_eq!(ahead, 2 * lasts, "where a claim takes {took} µs");
    }
}

/// A worker of two slots, whose jobs took next to no time: it takes ahead.
fn ahead() -> Scenario {
    let (mut scenario, limit) = Scenario::started(2, 100);
    scenario.claimed(2, limit, None);
    scenario.now = scenario.now + Duration::from_millis(1);
    let commands = scenario.ended(&[1, 2]);
    let sent = settlements_in(&commands);
    assert_eq!(claim_limit(&commands), Some(102), "two slots, and as many as end in 50 ms");
    assert_eq!(starts(&scenario.claimed(20, 102, None)), 2);
    scenario.settled(sent);
    scenario
}

#[test]
fn r08_jobs_that_no_slot_will_take_soon_are_released_unspent_and_in_order() {
    let mut scenario = ahead();
    let began = scenario.now;
    let released = settlements(scenario.wake());
    assert_eq!(scenario.now.since(began), STALL, "both slots are busy");
    let ids: Vec<u64> = released.iter().map(|one| one.lease.job.get()).collect();
    assert_eq!(ids, (5..=22).collect::<Vec<_>>());
    assert!(released.iter().all(|one| one.outcome == Outcome::Released));
    scenario.settled(released);
    let hint = Event::Woken(Wakeup::due(None, scenario.now));
    assert_eq!(claim_limit(&scenario.apply(hint)), None, "it does not take them back");
    assert_eq!(claim_limit(&scenario.ended(&[3])), Some(1), "it takes what it starts");
}

#[test]
fn r08_no_job_waits_longer_than_100_ms_although_others_start() {
    let mut scenario = ahead();
    let began = scenario.now;
    let mut released = 0;
    let mut ended = 3..;
    while released == 0 && scenario.now.since(began) < Duration::from_secs(1) {
        let at = scenario.now + Duration::from_millis(20);
        pass(&mut scenario, at, &mut released);
        let commands = scenario.ended(&[ended.next().unwrap()]);
        answer_all(&mut scenario, commands, &mut released);
    }
    assert_eq!((released, scenario.now.since(began)), (1, HOLD));
}

/// Lets time pass, and answers whatever comes.
fn pass(scenario: &mut Scenario, until: Timestamp, releases: &mut usize) {
    while scenario.machine.next_wake().is_some_and(|wake| wake <= until) {
        let commands = scenario.wake();
        answer_all(scenario, commands, releases);
    }
    scenario.now = until;
}

#[test]
fn r08_what_is_taken_ahead_in_vain_is_taken_ever_more_rarely() {
    let mut scenario = ahead();
    let (began, mut releases) = (scenario.now, 0);
    let end = began + Duration::from_secs(60);
    while scenario.now < end {
        // Jobs of a millisecond, so that taking ahead seems worth it,
        for _ in 0..10 {
            let running = scenario.running();
            let commands = scenario.ended(&running);
            answer_all(&mut scenario, commands, &mut releases);
            let at = scenario.now + Duration::from_millis(1);
            pass(&mut scenario, at, &mut releases);
        }
        // and then one of a second in each slot.
        let at = scenario.now + Duration::from_secs(1);
        pass(&mut scenario, at, &mut releases);
    }
    assert!((3..=20).contains(&releases), "{releases} releases in a minute");
}

/// Does what the commands ask for, at once; every claim brings all that it may.
fn answer_all(scenario: &mut Scenario, commands: Vec<Command>, releases: &mut usize) {
    let mut open = commands;
    while let Some(command) = open.pop() {
        let more = match command {
            Command::Claim { limit, .. } => scenario.claimed(limit.min(50), limit, None),
            Command::Settle(sent) => {
                *releases += usize::from(sent.iter().any(|one| one.outcome == Outcome::Released));
                scenario.settled(sent)
            }
            Command::Renew(leases) => {
                let (asked_at, answer) =
                    (scenario.now, Ok(vec![Renewal::Held(scenario.now + LEASE); leases.len()]));
                scenario.apply(Event::Renewed { leases, asked_at, answer })
            }
            Command::Reap => scenario.apply(Event::Reaped(Ok(vec![]))),
            _ => Vec::new(),
        };
        open.extend(more);
    }
}

#[test]
fn r31_in_a_queue_with_a_rate_a_worker_claims_what_it_starts() {
    let (mut scenario, limit) = Scenario::started(2, 100);
    scenario.rated = true;
    let due = Some(scenario.now);
    scenario.claimed(2, limit, due);
    scenario.now = scenario.now + Duration::from_millis(1);
    let commands = scenario.ended(&[1]);
    assert_eq!(claim_limit(&commands), Some(1), "although a hundred end in 50 ms");
    assert_eq!(starts(&scenario.claimed(1, 1, due)), 1);
}

#[test]
fn r31_a_queue_with_a_rate_has_its_turn_beside_one_that_is_never_empty() {
    let mut scenario = Scenario::of_queues(2, 2, 100);
    let commands = scenario.apply(Event::Tick);
    assert_eq!(looks(&commands), [vec![0, 1]]);
    scenario.apply(Event::Reaped(Ok(vec![])));
    let now = scenario.now;
    let commands = scenario.looked(&[0, 1], &[Some(now), Some(now)]);
    assert_eq!(claims(&commands), [0], "two slots, and which queues have a rate is unknown");
    let (mut turns, mut started, mut by_rate) = (Vec::new(), 0, 0);
    let mut open = scenario.claimed(2, 2, Some(now));
    for _ in 0..40 {
        let claims: Vec<(usize, usize)> = open.iter().filter_map(claim_of).collect();
        let mut next = Vec::new();
        for (queue, limit) in claims {
            turns.push(queue);
            let rated = queue == 1;
            let jobs = (0..limit).map(|_| scenario.job()).collect();
            let due = NextDue { now: scenario.now, due: Some(scenario.now), expiry: None };
            let answer = Ok(Claimed { now: scenario.now, jobs, next: due, rated });
            let asked_at = scenario.now;
            let commands = scenario.apply(Event::Claimed { queue, limit, asked_at, answer });
            assert!(!rated || starts(&commands) >= limit, "what the rate counts starts");
            by_rate += if rated { limit } else { 0 };
            next.extend(commands);
        }
        for sent in open.into_iter().filter_map(settle) {
            next.extend(scenario.settled(sent));
        }
        scenario.now = scenario.now + Duration::from_millis(1);
        let running = scenario.running();
        next.extend(scenario.ended(&running));
        started += starts(&next);
        open = next;
    }
    assert!(by_rate >= 20 && started - by_rate >= 20, "{by_rate} of {started}: {turns:?}");
}

#[test]
fn r21_a_watched_queue_is_looked_at_and_takes_no_turn_of_claims() {
    let mut scenario = Scenario::watching(1, 2, 2, 0);
    assert_eq!(looks(&scenario.apply(Event::Tick)), [vec![0, 1, 2]]);
    let now = scenario.now;
    let mut open = scenario.looked(&[0, 1, 2], &[Some(now); 3]);
    let mut turns = Vec::new();
    for _ in 0..20 {
        let claims: Vec<(usize, usize)> = open.iter().filter_map(claim_of).collect();
        let mut next = Vec::new();
        for (queue, limit) in claims {
            turns.push(queue);
            next.extend(scenario.claimed(limit, limit, Some(scenario.now)));
        }
        for sent in open.into_iter().filter_map(settle) {
            next.extend(scenario.settled(sent));
        }
        scenario.now = scenario.now + Duration::from_millis(1);
        let running = scenario.running();
        next.extend(scenario.ended(&running));
        open = next;
    }
    assert!(turns.len() >= 10 && turns.iter().all(|queue| *queue == 0), "{turns:?}");
}

fn claim_of(command: &Command) -> Option<(usize, usize)> {
    match command {
        Command::Claim { queue, limit } => Some((*queue, *limit)),
        _ => None,
    }
}

#[test]
fn r21_a_cancelled_attempt_is_renewed_at_once_and_found_lost() {
    let (mut scenario, limit) = Scenario::started(3, 0);
    scenario.claimed(3, limit, None);
    let cancelled = |which| Event::Woken(Wakeup::cancelled(which));
    assert!(scenario.apply(cancelled(Cancelled::Job(JobId::new(9)))).is_empty(), "another's");
    let commands = scenario.apply(cancelled(Cancelled::Job(JobId::new(2))));
    assert!(matches!(&commands[..], [Command::Renew(leases)] if *leases == [lease(2)]));
    let (leases, asked_at) = (vec![lease(2)], scenario.now);
    let commands =
        scenario.apply(Event::Renewed { leases, asked_at, answer: Ok(vec![Renewal::Lost]) });
    assert!(matches!(commands[..], [Command::Cancel(lost)] if lost == lease(2)), "{commands:?}");
    assert!(scenario.apply(cancelled(Cancelled::Any)).is_empty(), "not that soon again");
    let (began, commands) = (scenario.now, scenario.wake());
    assert_eq!(scenario.now.since(began), CHECK_PAUSE);
    let others = [lease(1), lease(3)];
    assert!(matches!(&commands[..], [Command::Renew(leases)] if *leases == others));
}

#[test]
fn r34_it_sleeps_exactly_to_the_due_time() {
    let (mut scenario, limit) = Scenario::started(1, 0);
    let due = scenario.now + Duration::from_micros(500_001);
    scenario.claimed(0, limit, Some(due));
    assert_eq!(scenario.machine.next_wake(), Some(due));
    assert_eq!(claim_limit(&scenario.wake()), Some(1));
}

#[test]
fn r34_a_hint_brings_the_next_look_forward_also_while_a_claim_is_in_flight() {
    let (mut scenario, limit) = Scenario::started(1, 0);
    let hint = |due| Event::Woken(Wakeup::due(None, due));
    assert_eq!(claim_limit(&scenario.apply(hint(Timestamp::MIN))), None, "a claim is in flight");
    assert_eq!(claim_limit(&scenario.claimed(0, limit, None)), Some(1), "the hint was kept");
    scenario.claimed(0, limit, None);
    let due = scenario.now + Duration::from_millis(3);
    scenario.apply(hint(due));
    assert_eq!(scenario.machine.next_wake(), Some(due));
    let elsewhere = Some(QueueName::new("other").unwrap());
    scenario.apply(Event::Woken(Wakeup::due(elsewhere, Timestamp::MIN)));
    assert_eq!(scenario.machine.next_wake(), Some(due));
}

#[test]
fn r35_contention_doubles_the_pause_and_other_errors_do_not() {
    let (mut scenario, limit) = Scenario::started(1, 0);
    let mut pauses = Vec::new();
    for kind in [ErrorKind::Contention, ErrorKind::Unavailable, ErrorKind::Contention] {
        let (asked_at, answer) = (scenario.now, Err(Error::new(kind, "no")));
        scenario.apply(Event::Claimed { queue: 0, limit, asked_at, answer });
        pauses.push(scenario.machine.next_wake().unwrap().since(scenario.now).as_secs_f64());
        assert_eq!(claim_limit(&scenario.wake()), Some(1), "it never gives up");
    }
    let expected = [2.0, 2.0, 4.0];
    for (pause, expected) in pauses.iter().zip(expected) {
        assert!((expected * 0.95..=expected * 1.05).contains(pause), "{pauses:?}");
    }
}

#[test]
fn r38_a_worker_whose_clock_is_days_off_sleeps_as_long_as_the_store_says() {
    let (mut scenario, limit) = Scenario::started(1, 0);
    let store_now = scenario.now + Duration::from_secs(3 * 86_400);
    let due = Some(store_now + Duration::from_millis(250));
    let next = NextDue { now: store_now, due, expiry: None };
    let answer = Ok(Claimed { now: store_now, jobs: vec![], next, rated: false });
    scenario.apply(Event::Claimed { queue: 0, limit, asked_at: scenario.now, answer });
    assert_eq!(scenario.machine.next_wake(), Some(scenario.now + Duration::from_millis(250)));
    let hint = Wakeup::due(None, store_now + Duration::from_millis(100));
    scenario.apply(Event::Woken(hint));
    assert_eq!(scenario.machine.next_wake(), Some(scenario.now + Duration::from_millis(100)));
}

#[test]
fn r21_leases_are_renewed_in_one_call_and_a_lost_one_is_told_once() {
    let (mut scenario, limit) = Scenario::started(2, 0);
    scenario.claimed(2, limit, None);
    let commands = scenario.wake();
    assert_eq!(scenario.now, Timestamp::from_secs(1_010), "a third of the lease");
    let Some(Command::Renew(leases)) = commands.into_iter().next() else { panic!("no renewal") };
    assert_eq!(leases, [lease(1), lease(2)]);
    let (asked_at, answer) =
        (scenario.now, Ok(vec![Renewal::Held(scenario.now + LEASE), Renewal::Lost]));
    let commands = scenario.apply(Event::Renewed { leases, asked_at, answer });
    assert!(matches!(commands[..], [Command::Cancel(lost)] if lost == lease(2)), "{commands:?}");
    let commands = scenario.wake();
    assert!(matches!(&commands[..], [Command::Renew(leases)] if *leases == [lease(1)]));
}

#[test]
fn r21_a_lease_that_cannot_be_renewed_is_reported_when_it_may_have_expired() {
    let (mut scenario, limit) = Scenario::started(1, 0);
    scenario.claimed(1, limit, None);
    let end = scenario.now + LEASE;
    let mut cancelled_at = None;
    while scenario.now < end + Duration::from_secs(5) {
        for command in scenario.wake() {
            match command {
                Command::Renew(leases) => {
                    let answer = Err(Error::new(ErrorKind::Unavailable, "store is away"));
                    let asked_at = scenario.now;
                    scenario.apply(Event::Renewed { leases, asked_at, answer });
                }
                Command::Cancel(_) => {
                    assert!(cancelled_at.replace(scenario.now).is_none(), "notified twice");
                }
                _ => {}
            }
        }
        if cancelled_at.is_some() {
            break;
        }
    }
    assert_eq!(cancelled_at, Some(end));
}

#[test]
fn r21_a_lease_that_a_renewal_found_out_nothing_about_is_kept_to_its_own_end() {
    let (mut scenario, limit) = Scenario::started(2, 0);
    scenario.claimed(2, limit, None);
    let (end, mut cancelled, mut asked) = (scenario.now + LEASE, Vec::new(), 0);
    while scenario.now < end + Duration::from_secs(5) && cancelled.is_empty() {
        for command in scenario.wake() {
            match command {
                Command::Renew(leases) => {
                    // The part of the store that knows job 2 is away.
                    let one = |lease: &Lease| match lease.job.get() {
                        1 => Renewal::Held(scenario.now + LEASE),
                        _ => Renewal::Unknown,
                    };
                    let (asked_at, answer) = (scenario.now, Ok(leases.iter().map(one).collect()));
                    asked += usize::from(leases == [lease(2)]);
                    scenario.apply(Event::Renewed { leases, asked_at, answer });
                }
                Command::Cancel(lost) => cancelled.push((lost, scenario.now)),
                _ => {}
            }
        }
    }
    assert_eq!(cancelled, [(lease(2), end)]);
    assert!(asked > 60, "asked again {asked} times, of job 2 alone");
}

#[test]
fn r21_a_renewal_that_hangs_holds_up_no_other() {
    let (mut scenario, limit) = Scenario::started(1, 0);
    scenario.claimed(1, limit, None);
    let hanging = scenario.wake();
    assert!(matches!(&hanging[..], [Command::Renew(leases)] if *leases == [lease(1)]));
    let asked_at = scenario.now;
    for nth in 2..=3 {
        let commands = scenario.wake();
        assert!(matches!(&commands[..], [Command::Renew(_)]), "renewal {nth}: {commands:?}");
        let answer = Ok(vec![Renewal::Held(scenario.now + LEASE)]);
        let leases = vec![lease(1)];
        scenario.apply(Event::Renewed { leases, asked_at: scenario.now, answer });
    }
    let renewed = scenario.now + LEASE;
    // The answer that comes late takes nothing back.
    let answer = Ok(vec![Renewal::Held(asked_at + LEASE)]);
    scenario.apply(Event::Renewed { leases: vec![lease(1)], asked_at, answer });
    while scenario.now < renewed {
        let commands = scenario.wake();
        let cancels = commands.iter().any(|command| matches!(command, Command::Cancel(_)));
        assert_eq!(cancels, scenario.now == renewed, "at {}: {commands:?}", scenario.now);
    }
}

#[test]
fn r29_shutdown_stops_claiming_and_gives_back_what_has_not_started() {
    let (mut scenario, _) = Scenario::started(1, 10);
    scenario.claimed(1, 1, None);
    scenario.ended(&[1]);
    scenario.claimed(2, 2, None);
    let commands = scenario.apply(Event::Shutdown);
    assert_eq!(claim_limit(&commands), None);
    let sent = scenario.settled(vec![succeeded(1)]);
    let released = settlements(sent);
    assert_eq!(released.len(), 1);
    assert_eq!((released[0].lease, &released[0].outcome), (lease(3), &Outcome::Released));
    assert!(!scenario.machine.is_done(), "job 2 still runs");
    scenario.settled(released);
    let sent = settlements(scenario.ended(&[2]));
    scenario.settled(sent);
    assert!(scenario.machine.is_done());
}

#[test]
fn r29_after_the_grace_time_attempts_are_aborted_and_given_back_unspent() {
    let (mut scenario, limit) = Scenario::started(1, 0);
    scenario.claimed(1, limit, None);
    scenario.apply(Event::Shutdown);
    let end = scenario.now + GRACE;
    let mut commands = Vec::new();
    while scenario.now < end {
        commands = scenario.wake();
        if let [Command::Renew(leases)] = &commands[..] {
            let (leases, asked_at) = (leases.clone(), scenario.now);
            let answer = Ok(vec![Renewal::Held(scenario.now + LEASE)]);
            scenario.apply(Event::Renewed { leases, asked_at, answer });
        }
    }
    assert!(commands.iter().any(|command| matches!(command, Command::Abort(_))));
    let released = settlements(commands);
    assert_eq!(released[0].outcome, Outcome::Released);
    assert!(scenario.ended(&[1]).is_empty(), "what it reports after that does not count");
    scenario.settled(released);
    assert!(scenario.machine.is_done());
}

/// Another worker takes its place meanwhile.
#[test]
fn r29_a_drained_worker_lets_attempts_go_on_until_a_shutdown_bounds_them() {
    let (mut scenario, limit) = Scenario::started(1, 0);
    scenario.claimed(1, limit, None);
    scenario.apply(Event::Drain);
    let renewed = |scenario: &mut Scenario, commands: &[Command]| {
        assert!(!commands.iter().any(|command| matches!(command, Command::Claim { .. })));
        if let [Command::Renew(leases)] = commands {
            let (leases, asked_at) = (leases.clone(), scenario.now);
            let answer = Ok(vec![Renewal::Held(scenario.now + LEASE)]);
            scenario.apply(Event::Renewed { leases, asked_at, answer });
        }
    };
    let long = scenario.now + GRACE * 3;
    while scenario.now < long {
        let commands = scenario.wake();
        assert!(!commands.iter().any(|command| matches!(command, Command::Abort(_))));
        renewed(&mut scenario, &commands);
    }
    assert!(!scenario.machine.is_done(), "the attempt goes on");
    scenario.apply(Event::Shutdown);
    scenario.apply(Event::Drain);
    let end = scenario.now + GRACE;
    let mut commands = Vec::new();
    while scenario.now < end {
        commands = scenario.wake();
        renewed(&mut scenario, &commands);
    }
    assert!(commands.iter().any(|command| matches!(command, Command::Abort(_))));
    let released = settlements(commands);
    scenario.settled(released);
    assert!(scenario.machine.is_done());

    let (mut scenario, limit) = Scenario::started(1, 0);
    scenario.claimed(1, limit, None);
    scenario.apply(Event::Drain);
    let sent = settlements(scenario.ended(&[1]));
    scenario.settled(sent);
    assert!(scenario.machine.is_done(), "its last attempt has ended");
}

/// Its heartbeats say so, and when it is over.
#[test]
fn r29_a_worker_that_an_operator_drains_claims_nothing_until_it_is_resumed() {
    let claims = |commands: &[Command]| {
        commands.iter().filter(|one| matches!(one, Command::Claim { .. })).count()
    };
    let (mut scenario, limit) = Scenario::started(1, 1);
    let begin = scenario.now;
    scenario.claimed(2, limit, None);
    let beaten = |scenario: &mut Scenario, drained| {
        scenario.machine.apply(Event::Beaten(Ok(Beaten { drained })), scenario.now)
    };
    let released = settlements(beaten(&mut scenario, true));
    let leases: Vec<u64> = released.iter().map(|one| one.lease.job.get()).collect();
    assert_eq!(leases, [2], "what has not started");
    scenario.settled(released);
    let sent = settlements(scenario.ended(&[1]));
    scenario.settled(sent);
    scenario.now = begin + Duration::from_secs(600);
    let commands = scenario.machine.apply(Event::Tick, scenario.now);
    assert_eq!(claims(&commands), 0, "{commands:?}");
    assert!(!scenario.machine.is_done() && !scenario.machine.is_resting(), "it waits");
    let wake = scenario.machine.next_wake();
    assert!(wake.is_none_or(|at| at >= scenario.now), "it does not spin");
    let commands = beaten(&mut scenario, false);
    assert_eq!(claims(&commands), 1, "{commands:?}");
}

#[test]
fn r29_jobs_of_a_claim_in_flight_at_shutdown_are_released() {
    let (mut scenario, limit) = Scenario::started(1, 0);
    scenario.apply(Event::Shutdown);
    assert!(!scenario.machine.is_done(), "a claim is in flight");
    let released = settlements(scenario.claimed(1, limit, None));
    assert_eq!(released[0].outcome, Outcome::Released);
    scenario.settled(released);
    assert!(scenario.machine.is_done());
}

#[test]
fn r39_settlements_survive_a_store_that_is_away_until_the_lease_ends() {
    let (mut scenario, limit) = Scenario::started(1, 0);
    scenario.claimed(1, limit, None);
    let sent = settlements(scenario.ended(&[1]));
    let away = || Err(Error::new(ErrorKind::Unavailable, "store is away"));
    scenario.apply(Event::Settled { sent, answer: away() });
    scenario.now = scenario.now + RETRY_PAUSE;
    let sent = settlements(scenario.apply(Event::Tick));
    assert_eq!(sent, [succeeded(1)]);
    scenario.now = scenario.now + LEASE;
    scenario.apply(Event::Settled { sent, answer: away() });
    scenario.now = scenario.now + RETRY_PAUSE;
    let commands = scenario.apply(Event::Tick);
    assert!(!commands.iter().any(|command| matches!(command, Command::Settle(_))));
}

#[test]
fn r39_a_settlement_that_breaks_its_call_is_dropped_alone() {
    for kind in [ErrorKind::Internal, ErrorKind::UnknownOutcome] {
        let (mut scenario, limit) = Scenario::started(9, 0);
        scenario.claimed(9, limit, None);
        let mut sent = settlements(scenario.ended(&[1, 2, 3, 4, 5, 6, 7, 8, 9]));
        let mut settled = Vec::new();
        let end = scenario.now + LEASE;
        loop {
            let next = if sent.iter().any(|one| one.lease == lease(3)) {
                let answer = Err(Error::new(kind, "the row of job 3 cannot be read"));
                scenario.apply(Event::Settled { sent, answer })
            } else {
                settled.extend(sent.iter().map(|one| one.lease.job.get()));
                scenario.settled(sent)
            };
            let commands = if next.iter().any(|one| matches!(one, Command::Settle(_))) {
                next
            } else if scenario.machine.held.is_empty() {
                break;
            } else {
                scenario.wake()
            };
            let renews = |leases: &[Lease]| leases.contains(&lease(3)) && settled.len() == 8;
            let renewed = |one: &Command| matches!(one, Command::Renew(leases) if renews(leases));
            assert!(!commands.iter().any(renewed), "{kind:?}: {commands:?}");
            sent = commands.into_iter().find_map(settle).unwrap_or_default();
            assert!(scenario.now <= end + RETRY_PAUSE, "{kind:?}: it is never dropped");
        }
        settled.sort_unstable();
        assert_eq!(settled, [1, 2, 4, 5, 6, 7, 8, 9], "{kind:?}");
    }
}

#[test]
fn r31_a_settlement_lets_a_limited_queue_be_looked_at_at_once() {
    let (mut scenario, _) = Scenario::started(4, 0);
    let due_already = Some(scenario.now);
    scenario.claimed(1, 4, due_already);
    assert!(scenario.machine.next_wake().unwrap() > scenario.now, "no busy loop on a limit");
    let sent = settlements(scenario.ended(&[1]));
    assert_eq!(claim_limit(&scenario.settled(sent)), Some(4));
}

#[test]
fn r31_a_claim_that_missed_a_settlement_is_made_again() {
    let (mut scenario, _) = Scenario::started(4, 0);
    let due_already = Some(scenario.now);
    scenario.claimed(1, 4, None);
    scenario.now = scenario.machine.next_wake().unwrap();
    assert_eq!(claim_limit(&scenario.apply(Event::Tick)), Some(3), "a poll is in flight");
    let sent = settlements(scenario.ended(&[1]));
    scenario.settled(sent);
    let next = NextDue { now: scenario.now, due: due_already, expiry: None };
    let answer = Ok(Claimed { now: scenario.now, jobs: vec![], next, rated: false });
    let again =
        scenario.apply(Event::Claimed { queue: 0, limit: 3, asked_at: scenario.now, answer });
    assert_eq!(claim_limit(&again), Some(4));
}

#[test]
fn r34_an_answer_that_took_its_time_does_not_delay_the_next_look() {
    let (mut scenario, limit) = Scenario::started(1, 0);
    let asked_at = scenario.now;
    let due = asked_at + Duration::from_millis(500);
    scenario.now = asked_at + Duration::from_millis(200);
    let next = NextDue { now: asked_at, due: Some(due), expiry: None };
    let answer = Ok(Claimed { now: asked_at, jobs: vec![], next, rated: false });
    scenario.apply(Event::Claimed { queue: 0, limit, asked_at, answer });
    assert_eq!(scenario.machine.next_wake(), Some(due));
}

#[test]
fn r11_a_prefetched_job_whose_lease_was_lost_is_not_started() {
    let (mut scenario, limit) = Scenario::started(1, 0);
    scenario.claimed(2, limit, None);
    let leases = vec![lease(1), lease(2)];
    let (asked_at, answer) =
        (scenario.now, Ok(vec![Renewal::Held(scenario.now + LEASE), Renewal::Lost]));
    scenario.apply(Event::Renewed { leases, asked_at, answer });
    assert_eq!(starts(&scenario.ended(&[1])), 0);
}

fn looks(commands: &[Command]) -> Vec<Vec<usize>> {
    let look = |command: &Command| match command {
        Command::Look(queues) => Some(queues.clone()),
        _ => None,
    };
    commands.iter().filter_map(look).collect()
}

/// The queues that are claimed from.
fn claims(commands: &[Command]) -> Vec<usize> {
    let claim = |command: &Command| match command {
        Command::Claim { queue, .. } => Some(*queue),
        _ => None,
    };
    commands.iter().filter_map(claim).collect()
}

#[test]
fn r34_r35_idle_queues_are_looked_at_in_one_call_about_once_a_second() {
    let mut scenario = Scenario::of_queues(50, 4, 0);
    let all: Vec<usize> = (0..50).collect();
    let commands = scenario.apply(Event::Tick);
    assert_eq!((looks(&commands), claims(&commands)), (vec![all.clone()], vec![]));
    scenario.apply(Event::Reaped(Ok(vec![])));
    let began = scenario.now;
    for _ in 0..20 {
        scenario.looked(&all, &[None; 50]);
        let looked_at = scenario.now;
        let commands = scenario.wake();
        assert_eq!((looks(&commands), claims(&commands)), (vec![all.clone()], vec![]));
        let slept = scenario.now.since(looked_at).as_secs_f64();
        assert!((0.95..=1.05).contains(&slept), "{slept}");
    }
    assert!(scenario.now.since(began).as_secs_f64() >= 20.0, "more often than once a second");
}

#[test]
fn r34_what_a_look_finds_due_is_claimed_and_the_rest_is_slept_to() {
    let mut scenario = Scenario::of_queues(3, 4, 0);
    scenario.apply(Event::Tick);
    scenario.apply(Event::Reaped(Ok(vec![])));
    let (now, soon) = (scenario.now, scenario.now + Duration::from_millis(300));
    let commands = scenario.looked(&[0, 1, 2], &[None, Some(now), Some(soon)]);
    assert_eq!((looks(&commands), claims(&commands)), (vec![], vec![1]));
    let next = NextDue { now, due: None, expiry: None };
    let (limit, answer) = (4, Ok(Claimed { now, jobs: vec![], next, rated: false }));
    scenario.apply(Event::Claimed { queue: 1, limit, asked_at: now, answer });
    let commands = scenario.wake();
    assert_eq!((scenario.now, claims(&commands)), (soon, vec![2]));
    assert!(looks(&commands).is_empty());
}

/// A time that has passed and that nothing is done about would make the event loop spin.
#[test]
fn r34_a_heartbeat_that_takes_long_lets_a_worker_without_work_sleep() {
    let (poll, heartbeat) = (PollSettings::default(), Duration::from_secs(10));
    let (lease, grace, rests) = (LEASE, GRACE, true);
    let bounds = Bounds { concurrency: 1, prefetch: 0, lease, heartbeat, grace, poll, rests };
    let began = Timestamp::from_secs(1_000);
    let queues = vec![QueueName::new("q0").unwrap()];
    let mut machine = Machine::new(bounds, queues, Vec::new(), began, 7);
    let mut commands = machine.apply(Event::Tick, began);
    commands.extend(machine.apply(Event::Beaten(Ok(Beaten::default())), began));
    commands.extend(machine.apply(Event::Reaped(Ok(vec![])), began));
    for queue in claims(&commands) {
        let next = NextDue { now: began, due: None, expiry: None };
        let answer = Ok(Claimed { now: began, jobs: vec![], next, rated: false });
        machine.apply(Event::Claimed { queue, limit: 1, asked_at: began, answer }, began);
    }
    let sends =
        |commands: &[Command]| commands.iter().any(|one| matches!(one, Command::Heartbeat { .. }));
    assert!(sends(&machine.apply(Event::Tick, began + Duration::from_secs(59))));
    // Its answer is awaited when the worker could rest.
    let now = began + Duration::from_secs(61);
    assert!(!sends(&machine.apply(Event::Tick, now)));
    assert!(machine.next_wake().is_none_or(|at| now < at), "{:?}", machine.next_wake());
    let commands = machine.apply(Event::Beaten(Ok(Beaten::default())), now);
    assert!(commands.iter().any(|one| matches!(one, Command::Leave)), "{commands:?}");
}

#[test]
fn r34_a_hint_that_comes_during_a_look_is_not_lost() {
    let mut scenario = Scenario::of_queues(2, 4, 0);
    scenario.apply(Event::Tick);
    scenario.apply(Event::Reaped(Ok(vec![])));
    let hint = Wakeup::due(Some(QueueName::new("q1").unwrap()), scenario.now);
    assert!(claims(&scenario.apply(Event::Woken(hint))).is_empty());
    assert_eq!(claims(&scenario.looked(&[0, 1], &[None, None])), [1]);
}

#[test]
fn r35_a_queue_with_contention_keeps_its_own_interval() {
    let mut scenario = Scenario::of_queues(2, 4, 0);
    scenario.apply(Event::Tick);
    scenario.apply(Event::Reaped(Ok(vec![])));
    let now = scenario.now;
    assert_eq!(claims(&scenario.looked(&[0, 1], &[None, Some(now)])), [1]);
    let (asked_at, answer) = (scenario.now, Err(Error::new(ErrorKind::Contention, "held")));
    scenario.apply(Event::Claimed { queue: 1, limit: 4, asked_at, answer });
    // The other one is looked at alone meanwhile: the one with contention sleeps twice as long.
    assert_eq!(looks(&scenario.wake()), [vec![0]]);
    scenario.looked(&[0], &[None]);
    let next = looks(&scenario.wake());
    assert!(next == [vec![1]] || next == [vec![0]] || next == [vec![0, 1]], "{next:?}");
    assert!(scenario.now.since(now) >= Duration::from_millis(1_900));
}

#[test]
fn r37_upkeep_goes_on_while_the_store_has_more_and_leaves_half_of_the_time() {
    let mut scenario = Scenario::new(1, 0);
    let prunes = |commands: &[Command]| {
        commands.iter().filter(|command| matches!(command, Command::Prune)).count()
    };
    while prunes(&scenario.wake()) == 0 {}
    for took in [Duration::from_millis(40), Duration::ZERO] {
        let asked_at = scenario.now;
        scenario.now = scenario.now + took;
        let answer = Ok(Pruned { jobs: 0, expired: 1_000, more: true });
        assert_eq!(
            prunes(&scenario.apply(Event::Pruned { asked_at, answer })),
            0,
            "one call at a time"
        );
        let again = scenario.now + took.max(Duration::from_millis(1));
        while prunes(&scenario.wake()) == 0 {}
        assert_eq!(scenario.now, again);
    }
    let (asked_at, answer) = (scenario.now, Ok(Pruned { jobs: 0, expired: 999, more: false }));
    scenario.apply(Event::Pruned { asked_at, answer });
    while prunes(&scenario.wake()) == 0 {}
    assert_eq!(scenario.now, asked_at + Duration::from_secs(60));
}

#[test]
fn r37_workers_that_start_together_do_not_remove_together() {
    let [half, whole] = [30, 60].map(Duration::from_secs);
    let mut pauses: Vec<_> = (0..100).map(super::upkeep::first_pause).collect();
    assert!(pauses.iter().all(|pause| (half..=whole).contains(pause)), "{pauses:?}");
    pauses.sort_unstable();
    let spread = pauses.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(spread > 90, "{pauses:?}");
    let largest = pauses.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(largest < Duration::from_secs(5), "a gap of {largest:?}: {pauses:?}");
}

#[test]
fn r25_r34_heartbeats_come_at_their_pace_whatever_the_worker_does() {
    let mut scenario = Scenario::new(2, 0);
    scenario.machine.pulse = Pulse::new(Duration::from_secs(10), scenario.now);
    let begin = scenario.now;
    let beats = |scenario: &mut Scenario| {
        let commands = scenario.machine.apply(Event::Tick, scenario.now);
        commands.iter().filter(|one| matches!(one, Command::Heartbeat { .. })).count()
    };
    assert_eq!(beats(&mut scenario), 1);
    assert_eq!(beats(&mut scenario), 0, "one is in flight");
    scenario.machine.apply(Event::Beaten(Ok(Beaten::default())), scenario.now);
    scenario.now = begin + Duration::from_secs(9);
    assert_eq!(beats(&mut scenario), 0);
    scenario.now = begin + Duration::from_secs(10);
    assert_eq!(beats(&mut scenario), 1);
    let away = Error::new(ErrorKind::Unavailable, "away");
    scenario.machine.apply(Event::Beaten(Err(away)), scenario.now);
    scenario.now = scenario.now + Duration::from_millis(250);
    assert_eq!(beats(&mut scenario), 1, "a heartbeat that failed is sent again soon");
    scenario.machine.apply(Event::Beaten(Ok(Beaten::default())), scenario.now);
    scenario.machine.apply(Event::Shutdown, scenario.now);
    scenario.now = scenario.now + Duration::from_secs(10);
    assert_eq!(beats(&mut scenario), 1, "a worker that drains is alive");
}

#[test]
fn r25_a_worker_that_was_suspended_reports_itself_before_it_takes_leases_back() {
    let mut scenario = Scenario::new(2, 0);
    scenario.machine.pulse = Pulse::new(Duration::from_secs(10), scenario.now);
    scenario.machine.apply(Event::Tick, scenario.now);
    scenario.machine.apply(Event::Beaten(Ok(Beaten::default())), scenario.now);
    scenario.machine.apply(Event::Reaped(Ok(Vec::new())), scenario.now);
    scenario.now = scenario.now + Duration::from_secs(300);
    scenario.machine.reap_at = Some(scenario.now);
    let reaps = |commands: &[Command]| commands.iter().any(|one| matches!(one, Command::Reap));
    let commands = scenario.machine.apply(Event::Tick, scenario.now);
    assert!(commands.iter().any(|one| matches!(one, Command::Heartbeat { .. })), "{commands:?}");
    assert!(!reaps(&commands), "{commands:?}");
    let commands = scenario.machine.apply(Event::Beaten(Ok(Beaten::default())), scenario.now);
    assert!(reaps(&commands), "{commands:?}");
}

/// The leases that commands extend.
fn extends(commands: &[Command]) -> Vec<Lease> {
    let of = |command: &Command| match command {
        Command::Extend { leases, .. } => leases.clone(),
        _ => Vec::new(),
    };
    commands.iter().flat_map(of).collect()
}

/// A machine that runs two jobs, whose renewal is in flight.
fn renewing() -> (Scenario, Vec<Lease>) {
    let mut scenario = Scenario::new(2, 0);
    scenario.apply(Event::Tick);
    scenario.apply(Event::Reaped(Ok(vec![])));
    let commands = scenario.claimed(2, 2, None);
    let started = commands.iter().filter_map(|command| match command {
        Command::Start(job) => Some(Lease { job: job.id, token: job.token }),
        _ => None,
    });
    let leases: Vec<Lease> = started.collect();
    assert_eq!(leases.len(), 2);
    scenario.now = scenario.now + LEASE / 3;
    let commands = scenario.apply(Event::Tick);
    assert!(commands.iter().any(|one| matches!(one, Command::Renew(all) if all.len() == 2)));
    (scenario, leases)
}

#[test]
fn r21_a_lease_is_handed_over_after_the_renewals_that_name_it() {
    let (mut scenario, leases) = renewing();
    let hour = Duration::from_secs(3_600);
    let commands = scenario.apply(Event::HandedOver(vec![(leases[0], hour)]));
    assert_eq!(extends(&commands), [], "the renewal in flight would shorten it");
    let held = scenario.now + LEASE;
    let (answer, asked_at) = (Ok(vec![Renewal::Held(held); 2]), scenario.now);
    let renewed = Event::Renewed { leases: leases.clone(), asked_at, answer };
    let commands = scenario.apply(renewed);
    assert_eq!(extends(&commands), [leases[0]]);
    // It is in no later renewal, and a store that does not answer is asked again.
    scenario.now = scenario.now + LEASE / 3;
    let commands = scenario.apply(Event::Tick);
    let renewed = commands.iter().find_map(|one| match one {
        Command::Renew(leases) => Some(leases.clone()),
        _ => None,
    });
    assert_eq!(renewed, Some(vec![leases[1]]));
    let unknown = || Ok(vec![Renewal::Unknown]);
    let extended = Event::Extended { leases: vec![leases[0]], answer: unknown() };
    assert_eq!(extends(&scenario.apply(extended)), []);
    scenario.now = scenario.now + RETRY_PAUSE;
    // The renewal of the other lease is still in flight.
    assert_eq!(extends(&scenario.apply(Event::Tick)), [leases[0]]);
    let answer = Ok(vec![Renewal::Held(scenario.now + hour)]);
    scenario.apply(Event::Extended { leases: vec![leases[0]], answer });
    // The slot that became free is claimed for.
    scenario.claimed(0, 1, None);
    scenario.apply(Event::Shutdown);
    assert!(!scenario.machine.is_done(), "the other attempt runs");
    scenario
        .apply(Event::Ended(vec![Settlement { lease: leases[1], outcome: Outcome::succeeded() }]));
    let settled = Settled { lease: leases[1], became: SettledAs::Succeeded };
    let sent = vec![Settlement { lease: leases[1], outcome: Outcome::succeeded() }];
    scenario.apply(Event::Settled { sent, answer: Ok(vec![settled]) });
    assert!(scenario.machine.is_done());
}
