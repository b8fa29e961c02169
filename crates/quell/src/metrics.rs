//! Metrics, through the `metrics` facade: a process that installs no
//! recorder pays next to nothing.

use quell_core::{AttemptOutcome, QueueName, Receipt, TaskName, Timestamp};

/// Counts of one store call, so that a burst costs one increment per outcome and not one per
/// trigger.
#[derive(Debug, Default)]
pub(crate) struct Tally(Vec<(QueueName, TaskName, &'static str, u64)>);

impl Tally {
    pub(crate) fn add(&mut self, queue: &QueueName, task: &TaskName, receipt: &Receipt) {
        let outcome = receipt.outcome();
        let found = self.0.iter_mut().find(|(q, t, o, _)| *o == outcome && t == task && q == queue);
        match found {
            Some((_, _, _, count)) => *count += 1,
            None => self.0.push((queue.clone(), task.clone(), outcome, 1)),
        }
    }

    pub(crate) fn emit(self) {
        for (queue, task, outcome, count) in self.0 {
            let labels = [("queue", queue.as_str().to_owned()), ("task", task.as_str().to_owned())];
            if outcome == "debounced" {
                metrics::counter!("quell_task_debounced_total", &labels).increment(count);
            }
            let [queue, task] = labels;
            metrics::counter!(
                "quell_triggers_total",
                &[queue, task, ("outcome", outcome.to_owned())]
            )
            .increment(count);
        }
    }
}

/// The handles of one task, looked up once.
#[derive(Clone)]
pub(crate) struct TaskMetrics {
    attempts: Vec<metrics::Counter>,
    debounce_delay: metrics::Histogram,
    duration: metrics::Histogram,
    lateness: metrics::Histogram,
}

impl TaskMetrics {
    pub(crate) fn new(queue: &QueueName, task: &TaskName) -> Self {
        let labels = [("queue", queue.as_str().to_owned()), ("task", task.as_str().to_owned())];
        let attempts = AttemptOutcome::ALL
            .iter()
            .map(|outcome| {
                let [queue, task] = labels.clone();
                let outcome = ("outcome", outcome.name().to_owned());
                metrics::counter!("quell_attempts_total", &[queue, task, outcome])
            })
            .collect();
        TaskMetrics {
            attempts,
            debounce_delay: metrics::histogram!("quell_task_debounce_delay_seconds", &labels),
            duration: metrics::histogram!("quell_attempt_duration_seconds", &labels),
            lateness: metrics::histogram!("quell_start_lateness_seconds", &labels),
        }
    }

    pub(crate) fn started(&self, first_at: Timestamp, due_at: Timestamp, started_at: Timestamp) {
        self.debounce_delay.record(started_at.since(first_at));
        self.lateness.record(started_at.since(due_at));
    }

    pub(crate) fn ended(&self, outcome: AttemptOutcome, took: std::time::Duration) {
        if let Some(counter) = self.attempts.get(usize::from(outcome.code())) {
            counter.increment(1);
        }
        self.duration.record(took);
    }
}

/// Says to the recorder what the metrics are.
pub(crate) fn describe() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    describe_counter!("quell_triggers_total", "Triggers by what became of each.");
    describe_counter!("quell_task_debounced_total", "Triggers that an open window took in.");
    describe_counter!("quell_attempts_total", "Attempts by how each ended.");
    describe_counter!("quell_leases_lost_total", "Leases that expired before their attempt ended.");
    // From zero, so that an alert sees the first one.
    metrics::counter!("quell_leases_lost_total").increment(0);
    describe_counter!("quell_poll_claimed_total", "Jobs that polls of a queue brought.");
    describe_counter!("quell_poll_contention_total", "Polls of a queue that met contention.");
    let seconds = Unit::Seconds;
    describe_gauge!("quell_poll_interval_seconds", seconds, "The poll interval of a queue.");
    let delay = "From the first trigger of a job to its start.";
    describe_histogram!("quell_task_debounce_delay_seconds", seconds, delay);
    describe_histogram!("quell_attempt_duration_seconds", seconds, "How long attempts took.");
    let late = "From the time at which a job was due to its start.";
    describe_histogram!("quell_start_lateness_seconds", seconds, late);
}

/// A lease was lost.
pub(crate) fn lease_lost() {
    metrics::counter!("quell_leases_lost_total").increment(1);
}

/// The poll of a queue brought jobs.
pub(crate) fn polled(queue: &QueueName, claimed: usize) {
    metrics::counter!("quell_poll_claimed_total", "queue" => queue.as_str().to_owned())
        .increment(u64::try_from(claimed).unwrap_or(u64::MAX));
}

/// The poll of a queue met contention.
pub(crate) fn contention(queue: &QueueName) {
    metrics::counter!("quell_poll_contention_total", "queue" => queue.as_str().to_owned())
        .increment(1);
}

/// The poll interval of a queue.
pub(crate) fn interval(queue: &QueueName, interval: std::time::Duration) {
    metrics::gauge!("quell_poll_interval_seconds", "queue" => queue.as_str().to_owned())
        .set(interval.as_secs_f64());
    // The counters of polls begin at zero, so that an alert sees the first change.
    polled(queue, 0);
    metrics::counter!("quell_poll_contention_total", "queue" => queue.as_str().to_owned())
        .increment(0);
}
