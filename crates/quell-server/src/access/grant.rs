//! What a token permits: its scopes, and the tasks and queues that it is limited to.
//!
//! Invariant: whatever a scope or a pattern does not name is refused.

use std::fmt;
use std::str::FromStr;

use quell::{Error, QueueName, Result, TaskName};
use serde::{Deserialize, Serialize};

/// The most bytes of a pattern.
const MAX_PATTERN: usize = 128;

/// What routes ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// To trigger tasks, and to read what became of those jobs.
    Trigger,
    /// To claim jobs, and to settle them.
    Work,
    /// To see jobs, queues, schedules and metrics, without payloads.
    Read,
    /// To see payloads and outputs.
    Payload,
    /// To change what waits, runs or is dead, and to pause.
    Operate,
    /// To change settings and tokens, and everything else.
    Admin,
}

impl Right {
    /// All of them.
    pub const ALL: [Right; 6] =
        [Right::Trigger, Right::Work, Right::Read, Right::Payload, Right::Operate, Right::Admin];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Right::Trigger => "trigger",
            Right::Work => "work",
            Right::Read => "read",
            Right::Payload => "payload",
            Right::Operate => "operate",
            Right::Admin => "admin",
        }
    }
}

/// A name, or the beginning of names where it ends with `*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(String);

impl Pattern {
    /// Whether a name is one of them.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == self.0,
        }
    }

    /// The only name that it matches, if it has no `*`.
    #[must_use]
    pub fn exact(&self) -> Option<&str> {
        (!self.0.ends_with('*')).then_some(&self.0)
    }
}

impl FromStr for Pattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let name = text.strip_suffix('*').unwrap_or(text);
        let is_fine = !text.is_empty()
            && text.len() <= MAX_PATTERN
            && !name.contains(|c: char| c == '*' || c.is_whitespace() || c.is_control());
        if is_fine {
            return Ok(Pattern(text.to_owned()));
        }
        let message = format!(
            "{text:?} is not a pattern: give a name, or its beginning and `*`, of {MAX_PATTERN} bytes at \
             most"
        );
        Err(Error::invalid("pattern", message))
    }
}

impl TryFrom<String> for Pattern {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.0
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A right, and of `trigger` and `work` the tasks or queues that it is for: `trigger:mail`, `work:billing*`,
/// `read`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Scope {
    right: Right,
    of: Option<Pattern>,
}

impl FromStr for Scope {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, of) = match text.split_once(':') {
            Some((name, pattern)) => (name, Some(pattern.parse()?)),
            None => (text, None),
        };
        let right = Right::ALL.into_iter().find(|right| right.name() == name);
        let right = right.ok_or_else(|| {
            let names = Right::ALL.map(Right::name).join(", ");
            Error::invalid("scopes", format!("{text:?} is not a scope: give one of {names}"))
        })?;
        if of.is_some() && !matches!(right, Right::Trigger | Right::Work) {
            let message = format!(
                "{text:?} is not a scope: only trigger and work have a name after a colon, and the members \
                 `tasks` and `queues` limit the others"
            );
            return Err(Error::invalid("scopes", message));
        }
        Ok(Scope { right, of })
    }
}

impl TryFrom<String> for Scope {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> Self {
        scope.to_string()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.of {
            Some(of) => write!(f, "{}:{of}", self.right.name()),
            None => f.write_str(self.right.name()),
        }
    }
}

/// The tasks and queues that a token is limited to; where there are none named, all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Only these tasks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<Pattern>,
    /// Only these queues.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<Pattern>,
}

/// What a caller is permitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    scopes: Vec<Scope>,
    limits: Limits,
}

impl Grant {
    /// These scopes within these limits.
    #[must_use]
    pub fn new(scopes: Vec<Scope>, limits: Limits) -> Self {
        Grant { scopes, limits }
    }

    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        let admin = Scope { right: Right::Admin, of: None };
        Grant::new(vec![admin], Limits::default())
    }

    /// Whether it permits this, of any task or queue at least.
    #[must_use]
    pub fn has(&self, right: Right) -> bool {
        self.of(right).next().is_some()
    }

    /// The scopes that permit this: `admin` permits everything, and `operate` what `read` does.
    fn of(&self, right: Right) -> impl Iterator<Item = &Scope> {
        self.scopes.iter().filter(move |scope| {
            scope.right == right
                || scope.right == Right::Admin
                || (scope.right == Right::Operate && right == Right::Read)
        })
    }

    /// Whether it permits triggers of this task.
    #[must_use]
    pub fn triggers(&self, task: &TaskName) -> bool {
        self.of(Right::Trigger).any(|scope| names(scope.of.as_slice(), task.as_str()))
            && self.sees_task(task)
    }

    /// Whether it permits triggers of every task within its limits.
    #[must_use]
    pub fn triggers_any(&self) -> bool {
        self.of(Right::Trigger).any(|scope| scope.of.is_none())
    }

    /// Whether it permits work on this queue.
    #[must_use]
    pub fn works(&self, queue: &QueueName) -> bool {
        self.of(Right::Work).any(|scope| names(scope.of.as_slice(), queue.as_str()))
            && self.sees_queue(queue)
    }

    /// Whether it permits work on every queue and task, so that no job has to be looked up.
    #[must_use]
    pub fn works_everywhere(&self) -> bool {
        !self.is_limited() && self.of(Right::Work).any(|scope| scope.of.is_none())
    }

    /// Whether it is limited to some tasks or queues.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.limits != Limits::default()
    }

    /// What it is limited to.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether jobs of this task are within its limits.
    #[must_use]
    pub fn sees_task(&self, task: &TaskName) -> bool {
        names(&self.limits.tasks, task.as_str())
    }

    /// Whether jobs of this queue are within its limits.
    #[must_use]
    pub fn sees_queue(&self, queue: &QueueName) -> bool {
        names(&self.limits.queues, queue.as_str())
    }

    /// Whether jobs of this queue and task are within its limits.
    #[must_use]
    pub fn sees(&self, queue: &QueueName, task: &TaskName) -> bool {
        self.sees_queue(queue) && self.sees_task(task)
    }

    /// Its scopes, each as text.
    #[must_use]
    pub fn scope_list(&self) -> Vec<String> {
        self.scopes.iter().map(Scope::to_string).collect()
    }

    /// Its scopes as text, for messages.
    #[must_use]
    pub fn scopes(&self) -> String {
        let scopes = self.scope_list();
        if scopes.is_empty() { "none".to_owned() } else { scopes.join(", ") }
    }
}

fn names(patterns: &[Pattern], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(scopes: &[&str], tasks: &[&str], queues: &[&str]) -> Grant {
        let patterns = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let scopes = scopes.iter().map(|text| text.parse().unwrap()).collect();
        Grant::new(scopes, Limits { tasks: patterns(tasks), queues: patterns(queues) })
    }

    fn task(name: &str) -> TaskName {
        TaskName::new(name).unwrap()
    }

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).unwrap()
    }

    #[test]
    fn a_scope_permits_what_it_names_and_nothing_else() {
        for (scope, permitted) in [
            ("trigger", vec![Right::Trigger]),
            ("work:q", vec![Right::Work]),
            ("read", vec![Right::Read]),
            ("payload", vec![Right::Payload]),
            ("operate", vec![Right::Read, Right::Operate]),
            ("admin", Right::ALL.to_vec()),
        ] {
            let grant = grant(&[scope], &[], &[]);
            for right in Right::ALL {
                assert_eq!(grant.has(right), permitted.contains(&right), "{scope} {right:?}");
            }
            assert_eq!(grant.scopes(), scope);
        }
        assert!(!grant(&[], &[], &[]).has(Right::Read));
    }

    #[test]
    fn tasks_and_queues_are_limited_by_names_and_beginnings() {
        let some = grant(&["trigger:mail*", "work:q", "read"], &[], &[]);
        assert!(some.triggers(&task("mail.digest")) && !some.triggers(&task("bill")));
        assert!(some.works(&queue("q")) && !some.works(&queue("q2")));
        assert!(!some.works_everywhere() && some.sees(&queue("any"), &task("any")));
        let acme = grant(&["trigger", "work", "operate"], &["acme.*"], &["a", "b"]);
        assert!(acme.triggers(&task("acme.mail")) && !acme.triggers(&task("umbrella.mail")));
        assert!(acme.works(&queue("a")) && !acme.works(&queue("c")) && acme.is_limited());
        assert!(
            acme.sees(&queue("b"), &task("acme.x")) && !acme.sees(&queue("c"), &task("acme.x"))
        );
        assert!(grant(&["work"], &[], &[]).works_everywhere());
        assert!(!acme.works_everywhere(), "a job's task has to be looked up");
    }

    #[test]
    fn a_scope_that_cannot_be_meant_is_refused() {
        for text in ["", "reed", "read:mail", "trigger:", "work:a b", "work:*x", "admin:*"] {
            assert!(text.parse::<Scope>().is_err(), "{text}");
        }
        let scope: Scope = "trigger:mail*".parse().unwrap();
        assert_eq!(serde_json::to_string(&scope).unwrap(), "\"trigger:mail*\"");
        assert_eq!(serde_json::from_str::<Scope>("\"trigger:mail*\"").unwrap(), scope);
    }
}
