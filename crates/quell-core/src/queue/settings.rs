//! Live settings of queues and tasks (R31–R33), and what of them is refused (R40).
//!
//! They live in the store and take hold at the next claim. What a limit leaves free is decided in
//! [`limit`](crate::limit).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::remarks::check_text;
use crate::setters::setters;
use crate::window::Thresholds;
use crate::{Error, QueueName, Result, TaskName, Timestamp};

/// At most `limit` starts in any window of length `period`, wherever it begins (R31).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// How many starts.
    pub limit: u32,
    /// In how long a time. The window is half-open: a start counts until `period` has passed.
    pub period: Duration,
}

/// In which order the jobs of one partition start (R30, R41).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartitionOrder {
    /// As all jobs of the queue: by priority, then by due time, then by id (R30).
    #[default]
    ByPriority,
    /// One at a time, each after all before it have ended, retries included (R41).
    Strict,
}

impl PartitionOrder {
    fn is_default(&self) -> bool {
        *self == PartitionOrder::default()
    }
}

/// Live settings of a queue (R31–R33); they take hold at the next poll.
///
/// ```
/// use std::time::Duration;
/// use quell_core::{QueueSettings, Rate};
///
/// let rate = Rate { limit: 10, period: Duration::from_secs(1) };
/// let settings = QueueSettings::default().concurrency(4).rate(rate);
/// assert!(settings.validate().is_ok());
/// let settings = settings.worker_concurrency(5);
/// assert_eq!(settings.validate().unwrap_err().field(), Some("worker_concurrency"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueSettings {
    /// At most this many attempts of the queue at once, across all processes; none for no limit,
    /// 0 for nothing at all.
    pub concurrency: Option<u32>,
    /// At most this many attempts of the queue at once by one worker, identified by its id.
    pub worker_concurrency: Option<u32>,
    /// At most this many attempts of one partition of the queue at once, across all processes.
    pub partition_concurrency: Option<u32>,
    /// In which order the jobs of one partition start. A strict order runs one at a time, so
    /// [`partition_concurrency`](field@Self::partition_concurrency) is then 1, or left out.
    // Left out where it says nothing: an earlier version refuses members that it does not know.
    #[serde(skip_serializing_if = "PartitionOrder::is_default")]
    pub partition_order: PartitionOrder,
    /// How often attempts of the queue may start.
    pub rate: Option<Rate>,
    /// How often attempts of one partition of the queue may start.
    pub partition_rate: Option<Rate>,
    /// Whether claims get nothing.
    pub paused: bool,
    /// Since when it is paused, as the store noted in the step that paused it. A store ignores what a
    /// caller sets here.
    // An earlier version refuses members that it does not know, so stores keep a pause apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_since: Option<Timestamp>,
    /// Who paused it, by the words of that caller: [`MOST_REMARK`](Self::MOST_REMARK) bytes at
    /// most. It stays while the queue stays paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_by: Option<String>,
    /// Which declaration these settings were set by last, by a text of its author such as a digest of it. It
    /// stays where settings are set without one, so that the author sees whether the declaration changed
    /// since, and leaves alone what was changed by hand (R32).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared: Option<String>,
    /// The debounce thresholds of tasks that name none (R14).
    pub debounce: Option<Thresholds>,
}

setters!(QueueSettings {
    concurrency? u32,
    worker_concurrency? u32,
    partition_concurrency? u32,
    partition_order: PartitionOrder,
    rate? Rate,
    partition_rate? Rate,
    paused: bool,
    paused_by? String,
    declared? String,
    debounce? Thresholds,
});

impl QueueSettings {
    /// The most bytes of [`paused_by`](field@Self::paused_by) and of [`declared`](field@Self::declared).
    pub const MOST_REMARK: usize = 255;

    /// Refuses what cannot be meant (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field.
    pub fn validate(&self) -> Result<()> {
        self.part("worker_concurrency", self.worker_concurrency)?;
        self.part("partition_concurrency", self.partition_concurrency)?;
        if let Some(limit) =
            self.partition_concurrency.filter(|limit| *limit > 1 && self.is_strict())
        {
            let message = format!(
                "partition_concurrency is {limit}, and partition_order is strict, which runs one at a \
                 time: leave partition_concurrency out, or set it to 1"
            );
            return Err(Error::invalid("partition_concurrency", message));
        }
        check_text("paused_by", self.paused_by.as_deref())?;
        check_text("declared", self.declared.as_deref())?;
        check_rate("rate", self.rate)?;
        check_rate("partition_rate", self.partition_rate)?;
        match self.rate.zip(self.partition_rate) {
            // A longer period of the partition may well allow more starts than the queue's.
            Some((whole, part)) if part.period <= whole.period && part.limit > whole.limit => {
                Err(above("partition_rate", part.limit, "rate", whole.limit))
            }
            _ => Ok(()),
        }
    }

    /// A limit within the queue's own. A queue that is held at 0 says nothing about its parts.
    fn part(&self, field: &'static str, limit: Option<u32>) -> Result<()> {
        match (limit, self.concurrency) {
            (Some(0), _) => Err(Error::invalid(
                field,
                format!("{field} is 0: give 1 or more, or pause the queue"),
            )),
            (Some(part), Some(whole)) if whole > 0 && part > whole => {
                Err(above(field, part, "concurrency", whole))
            }
            (Some(_) | None, _) => Ok(()),
        }
    }

    /// Whether the jobs of a partition start in a strict order (R41).
    #[must_use]
    pub fn is_strict(&self) -> bool {
        self.partition_order == PartitionOrder::Strict
    }

    /// The same settings with what follows from them: a strict order has a partition concurrency of 1.
    /// Stores keep these, with the [pause](Self::kept).
    ///
    /// ```
    /// use quell_core::{PartitionOrder, QueueSettings};
    ///
    /// let settings = QueueSettings::default().partition_order(PartitionOrder::Strict);
    /// assert_eq!(settings.completed().partition_concurrency, Some(1));
    /// ```
    #[must_use]
    pub fn completed(&self) -> Self {
        let mut settings = self.clone();
        if self.is_strict() {
            settings.partition_concurrency = Some(1);
        }
        settings
    }

    /// What a store keeps of these settings in place of `before`: completed, and with the pause on record.
    /// A pause keeps its time and its caller while it lasts (R33). The declaration on record stays where
    /// these settings name none (R32).
    #[must_use]
    pub fn kept(&self, before: Option<&QueueSettings>, now: Timestamp) -> Self {
        let mut settings = self.completed();
        let declared = || before.and_then(|before| before.declared.clone());
        settings.declared = self.declared.clone().or_else(declared);
        let before = before.filter(|before| before.paused);
        let before = before.map(|before| (before.paused_since, before.paused_by.clone()));
        let pause = self.paused.then(|| before.unwrap_or((Some(now), self.paused_by.clone())));
        (settings.paused_since, settings.paused_by) = pause.unwrap_or_default();
        settings
    }

    /// Whether a settlement may make room for another start.
    #[must_use]
    pub fn limits_concurrency(&self) -> bool {
        let limits = [self.concurrency, self.worker_concurrency, self.partition_concurrency];
        self.is_strict() || limits.iter().any(Option::is_some)
    }

    /// Whether starts must be put on record.
    #[must_use]
    pub fn limits_rate(&self) -> bool {
        self.rate.is_some() || self.partition_rate.is_some()
    }

    /// Whether a partition may be full.
    #[must_use]
    pub fn limits_partitions(&self) -> bool {
        self.is_strict() || self.partition_concurrency.is_some() || self.partition_rate.is_some()
    }
}

fn above(field: &'static str, part: u32, of: &str, whole: u32) -> Error {
    let message = format!("{field} ({part}) is above {of} ({whole}): lower it or raise {of}");
    Error::invalid(field, message)
}

fn check_rate(field: &'static str, rate: Option<Rate>) -> Result<()> {
    let Some(rate) = rate else { return Ok(()) };
    if rate.limit == 0 {
        let message = format!("the limit of {field} is 0: give 1 or more, or pause the queue");
        return Err(Error::invalid(field, message));
    }
    if rate.period.as_micros() == 0 {
        let message = format!("the period of {field} is zero: give at least one microsecond");
        return Err(Error::invalid(field, message));
    }
    Ok(())
}

/// A queue as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueInfo {
    /// Its name.
    pub name: QueueName,
    /// Its settings.
    pub settings: QueueSettings,
}

impl QueueInfo {
    /// A queue with these settings.
    #[must_use]
    pub fn new(name: QueueName, settings: QueueSettings) -> Self {
        QueueInfo { name, settings }
    }
}

/// Live settings of a task (R14, R33).
///
/// ```
/// use std::time::Duration;
/// use quell_core::TaskSettings;
/// use quell_core::window::Thresholds;
///
/// let thresholds = Thresholds::new(Duration::from_secs(30), Duration::from_secs(300))?;
/// let settings = TaskSettings::default().debounce(thresholds);
/// assert!(settings.validate().is_ok());
/// # Ok::<(), quell_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskSettings {
    /// Whether its jobs wait, in every queue.
    pub paused: bool,
    /// Since when it is paused, as [`QueueSettings::paused_since`](field@QueueSettings::paused_since).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_since: Option<Timestamp>,
    /// Who paused it, as [`QueueSettings::paused_by`](field@QueueSettings::paused_by).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_by: Option<String>,
    /// The thresholds that an operator set for the task: they count in place of those of its policy, its
    /// queue and the process (R14). A throttled task has none that these could replace.
    // An earlier version refuses members that it does not know, so stores keep them apart, as a pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debounce: Option<Thresholds>,
}

setters!(TaskSettings {
    paused: bool,
    paused_by? String,
    debounce? Thresholds,
});

impl TaskSettings {
    /// Refuses what cannot be meant (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field.
    pub fn validate(&self) -> Result<()> {
        check_text("paused_by", self.paused_by.as_deref())
    }

    /// What a store keeps of these settings in place of `before`, as [`QueueSettings::kept`].
    #[must_use]
    pub fn kept(&self, before: Option<&TaskSettings>, now: Timestamp) -> Self {
        let before = before.filter(|before| before.paused);
        let before = before.map(|before| (before.paused_since, before.paused_by.clone()));
        let pause = self.paused.then(|| before.unwrap_or((Some(now), self.paused_by.clone())));
        let (paused_since, paused_by) = pause.unwrap_or_default();
        TaskSettings { paused_since, paused_by, ..self.clone() }
    }
}

/// A task as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskInfo {
    /// Its name.
    pub name: TaskName,
    /// Its settings.
    pub settings: TaskSettings,
}

impl TaskInfo {
    /// A task with these settings.
    #[must_use]
    pub fn new(name: TaskName, settings: TaskSettings) -> Self {
        TaskInfo { name, settings }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per_second(limit: u32) -> Option<Rate> {
        Some(Rate { limit, period: Duration::from_secs(1) })
    }

    /// Settings with these limits of queue, worker and partition.
    fn slots(queue: u32, worker: Option<u32>, partition: Option<u32>) -> QueueSettings {
        QueueSettings {
            concurrency: Some(queue),
            worker_concurrency: worker,
            partition_concurrency: partition,
            ..QueueSettings::default()
        }
    }

    fn rates(rate: Option<Rate>, partition_rate: Option<Rate>) -> QueueSettings {
        QueueSettings { rate, partition_rate, ..QueueSettings::default() }
    }

    #[test]
    fn r31_r40_settings_that_cannot_be_meant_are_refused() {
        let never = Some(Rate { limit: 1, period: Duration::from_nanos(999) });
        let minute = Some(Rate { limit: 9, period: Duration::from_secs(60) });
        let worker_alone =
            QueueSettings { worker_concurrency: Some(3), ..QueueSettings::default() };
        let table = [
            (slots(0, None, None), None),
            (worker_alone, None),
            (slots(3, Some(3), Some(3)), None),
            (slots(0, Some(3), Some(3)), None),
            (slots(3, Some(4), None), Some("worker_concurrency")),
            (slots(3, None, Some(4)), Some("partition_concurrency")),
            (slots(3, Some(0), None), Some("worker_concurrency")),
            (slots(3, None, Some(0)), Some("partition_concurrency")),
            (rates(per_second(1), None), None),
            (rates(per_second(0), None), Some("rate")),
            (rates(never, None), Some("rate")),
            (rates(None, never), Some("partition_rate")),
            (rates(None, per_second(0)), Some("partition_rate")),
            (rates(per_second(2), per_second(2)), None),
            (rates(per_second(2), per_second(3)), Some("partition_rate")),
            (rates(per_second(2), minute), None),
            (rates(minute, per_second(9)), None),
            (rates(minute, per_second(10)), Some("partition_rate")),
        ];
        for (settings, field) in table {
            let refused = settings.validate().err();
            assert_eq!(refused.as_ref().and_then(Error::field), field, "{settings:?}: {refused:?}");
        }
    }

    #[test]
    fn r40_r41_a_strict_order_runs_one_at_a_time() {
        let strict = QueueSettings::default().partition_order(PartitionOrder::Strict);
        let with = |limit: u32| strict.clone().partition_concurrency(limit);
        assert!(strict.validate().is_ok() && with(1).validate().is_ok());
        assert_eq!(with(2).validate().unwrap_err().field(), Some("partition_concurrency"));
        assert_eq!(strict.completed(), with(1));
        let loose = QueueSettings::default().partition_concurrency(3);
        assert_eq!(loose.completed(), loose);
    }

    #[test]
    fn r41_an_earlier_quell_reads_settings_without_a_strict_order() {
        let text = serde_json::to_string(&QueueSettings::default()).unwrap();
        assert!(!text.contains("partition_order"), "{text}");
        let strict = QueueSettings::default().partition_order(PartitionOrder::Strict);
        let text = serde_json::to_string(&strict).unwrap();
        assert!(text.contains(r#""partition_order":"strict""#), "{text}");
        assert_eq!(serde_json::from_str::<QueueSettings>(&text).unwrap(), strict);
    }

    #[test]
    fn r33_a_pause_keeps_its_time_and_its_caller_while_it_lasts() {
        let at = Timestamp::from_secs;
        let by = |by: &str| QueueSettings::default().paused(true).paused_by(by.to_owned());
        let first = by("ann").kept(None, at(5));
        assert_eq!((first.paused_since, first.paused_by.as_deref()), (Some(at(5)), Some("ann")));
        let again = QueueSettings { paused_since: Some(at(1)), ..by("bob") }.concurrency(3);
        let again = again.kept(Some(&first), at(9));
        assert_eq!(again, QueueSettings { concurrency: Some(3), ..first });
        let open = QueueSettings { paused: false, ..again.clone() }.kept(Some(&again), at(9));
        assert_eq!(open, QueueSettings::default().concurrency(3));
        let (apart, remarks) = again.split_remarks();
        let text = serde_json::to_string(&apart).unwrap();
        assert!(!text.contains("paused_"), "an earlier version reads it: {text}");
        assert_eq!(apart.with_remarks(remarks.clone()), again);
        assert_eq!(open.clone().with_remarks(remarks), open, "it is not paused");

        let by = |by: &str| TaskSettings::default().paused(true).paused_by(by.to_owned());
        let first = by("ann").kept(None, at(5));
        assert_eq!((first.paused_since, first.paused_by.as_deref()), (Some(at(5)), Some("ann")));
        assert_eq!(by("bob").kept(Some(&first), at(9)), first);
        let (apart, remarks) = first.split_remarks();
        assert_eq!((apart.paused_since, &apart.paused_by), (None, &None));
        assert_eq!(apart.with_remarks(remarks), first);
        let open = TaskSettings { paused: false, ..first.clone() };
        assert_eq!(open.kept(Some(&first), at(9)), TaskSettings::default());
    }

    #[test]
    fn r14_thresholds_of_a_task_are_kept_apart_and_beside_a_pause() {
        let thresholds =
            Thresholds::new(Duration::from_secs(30), Duration::from_secs(300)).unwrap();
        let paused = TaskSettings::default().paused(true).debounce(thresholds);
        let kept = paused.kept(None, Timestamp::from_secs(5));
        assert_eq!((kept.debounce, kept.paused), (Some(thresholds), true));
        let (apart, remarks) = kept.split_remarks();
        let text = serde_json::to_string(&apart).unwrap();
        assert_eq!(text, r#"{"paused":true}"#, "an earlier version reads it");
        assert_eq!(apart.with_remarks(remarks), kept);
        let open = TaskSettings { paused: false, ..kept.clone() };
        let open = open.kept(Some(&kept), Timestamp::from_secs(9));
        assert_eq!(open, TaskSettings::default().debounce(thresholds));
        let cleared = TaskSettings { debounce: None, ..kept.clone() };
        let cleared = cleared.kept(Some(&kept), Timestamp::from_secs(9));
        assert_eq!((cleared.debounce, cleared.paused_since), (None, kept.paused_since));
        assert!(TaskSettings::default().split_remarks().1.is_empty());
    }

    #[test]
    fn r32_a_declaration_on_record_stays_until_another_is_applied() {
        let by = |digest: &str| QueueSettings::default().declared(digest.to_owned());
        let first = by("one").concurrency(2).kept(None, Timestamp::from_secs(1));
        assert_eq!(first.declared.as_deref(), Some("one"));
        let by_hand = QueueSettings::default().concurrency(7);
        let changed = by_hand.kept(Some(&first), Timestamp::from_secs(2));
        assert_eq!((changed.concurrency, changed.declared.as_deref()), (Some(7), Some("one")));
        let (apart, remarks) = changed.split_remarks();
        assert_eq!((apart, &remarks.declared), (by_hand, &changed.declared));
        let next = by("two").kept(Some(&changed), Timestamp::from_secs(3));
        assert_eq!((next.concurrency, next.declared.as_deref()), (None, Some("two")));
    }

    #[test]
    fn r33_r40_a_caller_of_a_pause_is_bounded() {
        let by = |bytes: usize| Some("x".repeat(bytes));
        for (bytes, field) in [(255, None), (256, Some("paused_by"))] {
            let queue = QueueSettings::default().paused_by(by(bytes)).validate().err();
            let task = TaskSettings::default().paused_by(by(bytes)).validate().err();
            assert_eq!(queue.as_ref().and_then(Error::field), field, "{bytes}");
            assert_eq!(task.as_ref().and_then(Error::field), field, "{bytes}");
        }
    }

    #[test]
    fn r32_settings_of_an_older_quell_are_read() {
        let old = r#"{"concurrency":3,"paused":true,"debounce":null}"#;
        let expected =
            QueueSettings { concurrency: Some(3), paused: true, ..QueueSettings::default() };
        assert_eq!(serde_json::from_str::<QueueSettings>(old).unwrap(), expected);
        assert_eq!(serde_json::from_str::<QueueSettings>("{}").unwrap(), QueueSettings::default());
        assert_eq!(serde_json::from_str::<TaskSettings>("{}").unwrap(), TaskSettings::default());
    }

    #[test]
    fn r14_r40_a_debounce_that_cannot_be_meant_is_refused_wherever_it_is_read() {
        let read = |min: u64, max: u64| {
            let text = format!(
                r#"{{"debounce":{{"min":{{"secs":{min},"nanos":0}},"max":{{"secs":{max},"nanos":0}}}}}}"#
            );
            serde_json::from_str::<QueueSettings>(&text)
        };
        assert!(read(10, 60).unwrap().debounce.is_some());
        for (min, max, why) in [(60, 10, "is longer than max"), (0, 0, "min is zero")] {
            let refused = read(min, max).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn r31_each_limit_says_what_it_limits() {
        let none = QueueSettings::default();
        let one = Some(1);
        let table = [
            (none.clone(), (false, false)),
            (QueueSettings { concurrency: one, ..none.clone() }, (true, false)),
            (QueueSettings { worker_concurrency: one, ..none.clone() }, (true, false)),
            (QueueSettings { partition_concurrency: one, ..none.clone() }, (true, false)),
            (none.clone().partition_order(PartitionOrder::Strict), (true, false)),
            (QueueSettings { rate: per_second(1), ..none.clone() }, (false, true)),
            (QueueSettings { partition_rate: per_second(1), ..none }, (false, true)),
        ];
        for (settings, expected) in table {
            let limits = (settings.limits_concurrency(), settings.limits_rate());
            assert_eq!(limits, expected, "{settings:?}");
        }
    }
}
