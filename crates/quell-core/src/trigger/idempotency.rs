//! Idempotency keys: the first trigger wins, later ones get its job and its result (R19, R20).
//!
//! A store keeps one [`Record`] per (task, key), written in the same step as the job it names, so a
//! failed call never burns a key. While the job's row is there, its state and output are read from
//! it; when the row is removed, they move to the record (R37).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::envelope::Envelope;
use crate::payload::present;
use crate::{
    Error, ErrorKind, Job, JobId, JobState, Key, Payload, Receipt, Result, TaskName, Timestamp,
};

/// How long a key is kept where its task names no time.
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(24 * 3_600);

/// How deep canonical JSON looks into a document; deeper parts are compared byte by byte.
const MAX_DEPTH: usize = 64;

/// When upkeep looks again at a key that has expired at `expires_at` and whose job has not ended by
/// `now`. The pause doubles each time, so that the keys of a long backlog cost little.
#[must_use]
pub fn look_again(now: Timestamp, expires_at: Timestamp) -> Timestamp {
    now + now.since(expires_at).clamp(LOOK_AGAIN_MIN, LOOK_AGAIN_MAX)
}

/// The shortest pause of [`look_again`].
pub const LOOK_AGAIN_MIN: Duration = Duration::from_secs(60);
/// The longest pause of [`look_again`].
pub const LOOK_AGAIN_MAX: Duration = Duration::from_secs(24 * 3_600);

/// An idempotency key and how long it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Idempotency {
    /// The key; it is the task's own.
    pub key: Key,
    /// How long from acceptance, and at least until the job has ended.
    #[serde(default = "default_retention")]
    pub retention: Duration,
}

fn default_retention() -> Duration {
    DEFAULT_RETENTION
}

impl Idempotency {
    /// The key, kept for the default day.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Idempotency { key, retention: DEFAULT_RETENTION }
    }

    /// Refuses a retention of zero (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] that names the field.
    pub fn validate(&self) -> Result<()> {
        if self.retention.as_micros() == 0 {
            let message = "idempotency retention is zero: give a duration";
            return Err(Error::invalid("idempotency_retention", message));
        }
        Ok(())
    }

    /// The record of a trigger that was accepted at `now` as part of `job`.
    #[must_use]
    pub fn record(&self, fingerprint: Fingerprint, job: JobId, now: Timestamp) -> Record {
        Record { fingerprint, job, expires_at: now + self.retention, kept: None }
    }
}

/// The identity of a payload: the BLAKE3 hash of its canonical JSON.
///
/// Spaces, the order of members, and how a string or a number is spelt make no difference.
///
/// ```
/// use quell_core::{Payload, idempotency::Fingerprint};
///
/// let of = |text| Fingerprint::of(&Payload::from_text(text).unwrap());
/// assert_eq!(of(r#"{"a":1.0,"b":"x"}"#), of(r#"{ "b": "\u0078", "a": 1 }"#));
/// assert_ne!(of("[1,2]"), of("[2,1]"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint([u8; 32]);

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        let wrong = || Error::new(ErrorKind::Corrupt, format!("{text:?} is no fingerprint"));
        Fingerprint::from_hex(&text).ok_or_else(wrong)
    }
}

impl Fingerprint {
    /// The fingerprint of a payload; of one that a client encrypted, the one that it says.
    #[must_use]
    pub fn of(payload: &Payload) -> Self {
        if let Some(kept) = Envelope::of(payload.as_str()).and_then(|sealed| sealed.fingerprint) {
            return kept;
        }
        Fingerprint(*blake3::hash(canonical(payload.as_str(), MAX_DEPTH).as_bytes()).as_bytes())
    }

    /// The fingerprint of a payload under a key, BLAKE3's keyed hash: without the key it says nothing of
    /// payloads that can be guessed.
    #[must_use]
    pub fn keyed(key: &[u8; 32], payload: &Payload) -> Self {
        let text = canonical(payload.as_str(), MAX_DEPTH);
        Fingerprint(*blake3::keyed_hash(key, text.as_bytes()).as_bytes())
    }

    /// Reads what [`Display`](fmt::Display) wrote: 64 hexadecimal digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        blake3::Hash::from_hex(text).ok().map(|hash| Fingerprint(*hash.as_bytes()))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// What is kept of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Record {
    /// Of the payload that came first.
    pub fingerprint: Fingerprint,
    /// The job of the first trigger, or its successor.
    pub job: JobId,
    /// When the key is free, unless the job has not ended by then.
    pub expires_at: Timestamp,
    /// What the job's row said when it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
}

/// What outlives a job's row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Kept {
    /// How it ended.
    pub state: JobState,
    /// What it returned, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub output: Option<Payload>,
}

impl Record {
    /// Whether the key is taken at `now`; `job` is the state of the job's row, where it is there.
    #[must_use]
    pub fn holds(&self, now: Timestamp, job: Option<JobState>) -> bool {
        now < self.expires_at || job.is_some_and(|state| !state.is_ended())
    }

    /// Keeps the result of a job whose row is about to be removed.
    pub fn keep(&mut self, job: &Job) {
        self.kept = Some(Kept { state: job.state, output: job.output.clone() });
    }

    /// What the record has to say at `now`; none where the key is free. `job` is the job's row,
    /// where it is there.
    ///
    /// A trigger that a leading edge did not run may name a job whose row was gone by then (R13):
    /// that has no result, and holds nothing.
    #[must_use]
    pub fn result(&self, now: Timestamp, job: Option<&Job>) -> Option<JobResult> {
        if !self.holds(now, job.map(|job| job.state)) {
            return None;
        }
        let of_record = || self.kept.as_ref().map(|kept| JobResult::kept(self.job, kept));
        job.map(JobResult::of).or_else(of_record)
    }
}

/// A key that came with two payloads: the refusal of the second (R19).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The task.
    pub task: TaskName,
    /// The key.
    pub key: Key,
    /// The fingerprint that the key was used for.
    pub first: Fingerprint,
    /// The job of the first trigger; none where both are in the refused batch.
    pub job: Option<JobId>,
    /// The fingerprint that came now.
    pub given: Fingerprint,
    /// Which member of a batch of several it was.
    pub index: Option<usize>,
}

impl From<Box<Conflict>> for Error {
    fn from(conflict: Box<Conflict>) -> Self {
        let Conflict { task, key, first, job, given, index } = *conflict;
        let by = match job {
            Some(job) => format!("by job {job}"),
            None => "earlier in the batch".to_owned(),
        };
        let message = format!(
            "idempotency key {:?} of task {task} was used {by} for another payload, of fingerprint \
             {first}; this one has {given}: send the same payload, or choose another key",
            key.as_str()
        );
        let error = Error::new(ErrorKind::IdempotencyConflict, message);
        match index {
            Some(index) => error.at(format!("triggers[{index}]")),
            None => error,
        }
    }
}

/// The state of a job, and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobResult {
    /// The job; the successor, where the one that was asked for was absorbed (R12).
    pub job: JobId,
    /// Its state.
    pub state: JobState,
    /// What its handler returned; none before the end, and for a handler that returns nothing.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub output: Option<Payload>,
    /// What the last failed attempt said, where the job's row is still there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl JobResult {
    /// The largest output that is kept, in bytes of JSON. A handler that returns more has failed.
    pub const MAX_OUTPUT_BYTES: usize = 256 << 10;

    /// What a job's row says.
    #[must_use]
    pub fn of(job: &Job) -> Self {
        let (output, error) = (job.output.clone(), job.error.clone());
        JobResult { job: job.id, state: job.state, output, error }
    }

    /// What is known of a job whose row cannot be decoded (R25): `error` says why.
    #[must_use]
    pub fn unreadable(job: JobId, error: &Error) -> Self {
        let error = Some(crate::unreadable::reason(error));
        JobResult { job, state: JobState::Unreadable, output: None, error }
    }

    /// What a record says of a job whose row is gone.
    #[must_use]
    pub fn kept(job: JobId, kept: &Kept) -> Self {
        JobResult { job, state: kept.state, output: kept.output.clone(), error: None }
    }

    /// Whether it is final, unless an operator redrives a dead job.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.state.is_ended()
    }

    /// The answer to a trigger whose key names this job (R19).
    #[must_use]
    pub fn receipt(self) -> Receipt {
        Receipt::Existing { job: self.job, state: self.state, output: self.output }
    }
}

/// What a handler returned, as it is kept; `null` is none.
///
/// # Errors
/// [`ErrorKind::Invalid`] for one that has no JSON form, or is over
/// [`JobResult::MAX_OUTPUT_BYTES`].
pub fn encoded_output<T: Serialize + ?Sized>(value: &T) -> Result<Option<Payload>> {
    let text = serde_json::to_string(value)
        .map_err(|error| Error::invalid("output", format!("output has no JSON form: {error}")))?;
    checked_output(Payload::from_stored(text))
}

/// Checks the size of a handler's output; `null` is none.
///
/// # Errors
/// [`ErrorKind::Invalid`] for one over [`JobResult::MAX_OUTPUT_BYTES`].
pub fn checked_output(output: Payload) -> Result<Option<Payload>> {
    let (bytes, most) = (output.as_str().len(), JobResult::MAX_OUTPUT_BYTES);
    if bytes > most {
        let message = format!(
            "output has {bytes} bytes, the limit is {most}: keep it elsewhere and return where it is"
        );
        return Err(Error::invalid("output", message));
    }
    Ok((output.as_str() != "null").then_some(output))
}

/// A key made of the task and its payload (R20).
///
/// ```
/// use std::time::Duration;
/// use quell_core::{Payload, TaskName, Timestamp, idempotency::DerivedKey};
///
/// let hourly = DerivedKey::of_fields(["user"]).within(Duration::from_secs(3_600));
/// let task = TaskName::new("report")?;
/// let payload = |text| Payload::from_text(text).unwrap();
/// let key = |text, second| hourly.key(&task, &payload(text), Timestamp::from_secs(second));
/// assert_eq!(key(r#"{"user":7,"n":1}"#, 7_300)?, key(r#"{"n":1,"user":7}"#, 10_799)?);
/// assert_ne!(key(r#"{"user":7,"n":1}"#, 7_300)?, key(r#"{"n":1,"user":7}"#, 10_800)?);
/// # Ok::<(), quell_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[must_use]
pub struct DerivedKey {
    fields: Option<Vec<String>>,
    window: Option<Duration>,
}

impl DerivedKey {
    /// Of the whole payload.
    pub fn of_payload() -> Self {
        DerivedKey::default()
    }

    /// Of these top-level members of the payload; those that it lacks are left out.
    pub fn of_fields(fields: impl IntoIterator<Item = impl Into<String>>) -> Self {
        DerivedKey { fields: Some(fields.into_iter().map(Into::into).collect()), window: None }
    }

    /// And of the time, cut to a multiple of `window` since the epoch: the same trigger in the next
    /// window is another one.
    pub fn within(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// Refuses what cannot be meant (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] that names the field.
    pub fn validate(&self) -> Result<()> {
        if self.fields.as_ref().is_some_and(Vec::is_empty) {
            let message = "idempotency fields are empty: name at least one, or use the payload";
            return Err(Error::invalid("idempotency_fields", message));
        }
        if self.window.is_some_and(|window| window.as_micros() == 0) {
            let message = "idempotency window is zero: give a duration, or none";
            return Err(Error::invalid("idempotency_window", message));
        }
        Ok(())
    }

    /// The key of a trigger of `task` with `payload` at `now`, which is the caller's time.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where fields are asked for and the payload is no object, or has none
    /// of them: the key would be the same for all such triggers.
    pub fn key(&self, task: &TaskName, payload: &Payload, now: Timestamp) -> Result<Key> {
        let chosen = match &self.fields {
            None => canonical(payload.as_str(), MAX_DEPTH),
            Some(fields) => chosen(payload, fields)?,
        };
        let window = self.window.map(|window| {
            let micros = i64::try_from(window.as_micros()).unwrap_or(i64::MAX).max(1);
            now.as_micros().checked_div_euclid(micros).unwrap_or_default()
        });
        let mut hasher = blake3::Hasher::new();
        // No name has a line break, and canonical JSON has none either.
        hasher.update(format!("{task}\n{window:?}\n{chosen}").as_bytes());
        Key::new(format!("derived-{}", hasher.finalize().to_hex()))
    }
}

/// The canonical JSON of the object of the named members.
fn chosen(payload: &Payload, fields: &[String]) -> Result<String> {
    let refused = |why: &str| {
        let message =
            format!("payload {why}: the idempotency key is made of {}", fields.join(", "));
        Error::invalid("idempotency_fields", message)
    };
    let members: BTreeMap<String, &RawValue> =
        serde_json::from_str(payload.as_str()).map_err(|_| refused("is not an object"))?;
    let wanted = members.iter().filter(|(name, _)| fields.contains(name));
    let text = object(wanted.map(|(name, value)| (name.as_str(), *value)), MAX_DEPTH);
    if text == "{}" {
        return Err(refused("has none of its fields"));
    }
    Ok(text)
}

/// One spelling for all texts of the same JSON value, as RFC 8785 has it, but for numbers: those
/// are compared by their exact value, where its doubles would make one of two large ones.
fn canonical(text: &str, depth: usize) -> String {
    let text = text.trim();
    let below = depth.saturating_sub(1);
    match text.as_bytes().first() {
        Some(b'{' | b'[') if depth == 0 => text.to_owned(),
        Some(b'{') => match serde_json::from_str::<BTreeMap<String, &RawValue>>(text) {
            Ok(members) => {
                object(members.iter().map(|(name, value)| (name.as_str(), *value)), below)
            }
            Err(_) => text.to_owned(),
        },
        Some(b'[') => match serde_json::from_str::<Vec<&RawValue>>(text) {
            Ok(items) => {
                let items: Vec<String> =
                    items.iter().map(|item| canonical(item.get(), below)).collect();
                format!("[{}]", items.join(","))
            }
            Err(_) => text.to_owned(),
        },
        Some(b'"') => match serde_json::from_str::<Cow<'_, str>>(text) {
            Ok(string) => quoted(&string),
            Err(_) => text.to_owned(),
        },
        Some(b'-' | b'0'..=b'9') => number(text).unwrap_or_else(|| text.to_ascii_lowercase()),
        _ => text.to_owned(),
    }
}

fn object<'v>(members: impl Iterator<Item = (&'v str, &'v RawValue)>, depth: usize) -> String {
    let members: Vec<String> = members
        .map(|(name, value)| format!("{}:{}", quoted(name), canonical(value.get(), depth)))
        .collect();
    format!("{{{}}}", members.join(","))
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// A number by its value: its digits without zeros at either end, and the power of ten of the last.
/// None where the exponent is beyond counting.
fn number(text: &str) -> Option<String> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
        None => (text, 0),
    };
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let short = digits.trim_end_matches('0');
    let cut = i64::try_from(digits.len().checked_sub(short.len())?).ok()?;
    let short = short.trim_start_matches('0');
    if short.is_empty() {
        return Some("0".to_owned());
    }
    let after = i64::try_from(fraction.len()).ok()?;
    let power = exponent.checked_sub(after)?.checked_add(cut)?;
    Some(format!("{sign}{short}e{power}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(text: &str) -> Payload {
        Payload::from_text(text).unwrap()
    }

    #[test]
    fn r19_one_value_has_one_fingerprint_however_it_is_written() {
        let same: [(&str, &str); 8] = [
            (r#"{"a":1,"b":[true,null]}"#, " { \"b\" : [ true , null ] , \"a\" : 1 } "),
            (r#""é\n""#, r#""\u00e9\u000a""#),
            ("1", "1.0"),
            ("100", "1e2"),
            ("-0.0", "0"),
            ("0.001", "1E-3"),
            ("12300", "1.230e+4"),
            (r#"{"a":{"c":1,"b":2}}"#, r#"{"a":{"b":2,"c":1}}"#),
        ];
        for (one, other) in same {
            let of = |text| Fingerprint::of(&payload(text));
            assert_eq!(of(one), of(other), "{one} and {other}");
        }
    }

    #[test]
    fn r19_different_values_have_different_fingerprints() {
        let all = [
            "null",
            "true",
            "\"true\"",
            "0",
            "1",
            "-1",
            "\"1\"",
            "10",
            "1.5",
            // Beyond the precision of a double.
            "9007199254740992",
            "9007199254740993",
            "123456789012345678901234567890",
            "123456789012345678901234567891",
            "1e99999999999999999999",
            "[]",
            "{}",
            "[1,2]",
            "[2,1]",
            "[[1],2]",
            r#"{"a":1}"#,
            r#"{"a":{"a":1}}"#,
            r#"{"a":1,"b":1}"#,
            r#"{"a,b":1}"#,
        ];
        let distinct: std::collections::BTreeSet<Fingerprint> =
            all.iter().map(|text| Fingerprint::of(&payload(text))).collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn r19_a_document_deeper_than_is_looked_counts_by_its_letters() {
        let deep = |inner: &str| format!("{}{inner}{}", "[".repeat(9_000), "]".repeat(9_000));
        let of = |text: &str| Fingerprint::of(&payload(text));
        assert_eq!(of(&deep("1")), of(&deep("1")));
        assert_ne!(of(&deep("1")), of(&deep("2")));
    }

    #[test]
    fn a_fingerprint_is_read_back_from_its_text() {
        let fingerprint = Fingerprint::of(&payload("1"));
        assert_eq!(Fingerprint::from_hex(&fingerprint.to_string()), Some(fingerprint));
        assert_eq!(Fingerprint::from_hex("12"), None);
        assert_eq!(fingerprint.to_string().len(), 64);
    }

    #[test]
    fn r19_a_key_is_free_after_its_retention_but_not_before_its_job_has_ended() {
        let now = Timestamp::from_secs(100);
        let idempotency = Idempotency::new(Key::new("k").unwrap());
        let record = idempotency.record(Fingerprint::of(&payload("1")), JobId::new(1), now);
        let end = now + DEFAULT_RETENTION;
        let before = end.before(Duration::from_micros(1));
        for job in [None, Some(JobState::Succeeded), Some(JobState::Dead)] {
            assert!(record.holds(before, job) && !record.holds(end, job), "{job:?}");
        }
        for job in [JobState::Scheduled, JobState::Running] {
            assert!(record.holds(end, Some(job)), "{job}");
        }
    }

    #[test]
    fn r20_a_derived_key_is_of_task_payload_fields_and_window() {
        let task = |name| TaskName::new(name).unwrap();
        let at = Timestamp::from_secs;
        let all = DerivedKey::of_payload();
        let whole = |name, text, second| all.key(&task(name), &payload(text), at(second)).unwrap();
        let one = whole("t", r#"{"a":1,"b":2}"#, 0);
        assert_eq!(one, whole("t", r#"{"b":2.0,"a":1}"#, 999));
        assert_ne!(one, whole("u", r#"{"a":1,"b":2}"#, 0));
        assert_ne!(one, whole("t", r#"{"a":1,"b":3}"#, 0));
        let fields = DerivedKey::of_fields(["a"]).within(Duration::from_secs(60));
        let some = |text, second| fields.key(&task("t"), &payload(text), at(second));
        assert_eq!(some(r#"{"a":1,"b":2}"#, 60).unwrap(), some(r#"{"a":1}"#, 119).unwrap());
        assert_ne!(some(r#"{"a":1}"#, 60).unwrap(), some(r#"{"a":1}"#, 120).unwrap());
        assert_ne!(some(r#"{"a":1}"#, 60).unwrap(), some(r#"{"a":"1"}"#, 60).unwrap());
        for bad in ["7", r#"{"b":2}"#] {
            assert_eq!(some(bad, 0).unwrap_err().field(), Some("idempotency_fields"), "{bad}");
        }
    }

    #[test]
    fn r40_zero_times_and_no_fields_are_refused_by_field() {
        let none = Idempotency { retention: Duration::from_nanos(999), ..new("k") };
        assert_eq!(none.validate().unwrap_err().field(), Some("idempotency_retention"));
        assert!(new("k").validate().is_ok());
        let never = DerivedKey::of_payload().within(Duration::ZERO);
        assert_eq!(never.validate().unwrap_err().field(), Some("idempotency_window"));
        let nothing = DerivedKey::of_fields(Vec::<String>::new());
        assert_eq!(nothing.validate().unwrap_err().field(), Some("idempotency_fields"));
    }

    #[test]
    fn r19_an_output_over_the_limit_is_refused_and_null_is_none() {
        let sized = |bytes: usize| payload(&format!("\"{}\"", "x".repeat(bytes - 2)));
        let most = JobResult::MAX_OUTPUT_BYTES;
        assert!(checked_output(sized(most)).unwrap().is_some());
        assert_eq!(checked_output(sized(most + 1)).unwrap_err().field(), Some("output"));
        assert_eq!(checked_output(payload("null")).unwrap(), None);
        assert_eq!(encoded_output(&()).unwrap(), None);
        assert_eq!(encoded_output(&[1, 2]).unwrap(), Some(payload("[1,2]")));
        let no_json = BTreeMap::from([([1], 2)]);
        assert_eq!(encoded_output(&no_json).unwrap_err().field(), Some("output"));
    }

    fn new(key: &str) -> Idempotency {
        Idempotency::new(Key::new(key).unwrap())
    }
}
