//! Which jobs: one language for the query of a list, the body of an action and the command line.
//!
//! Invariant: a member has the same name and the same meaning everywhere, and an error names it.

use quell::job::{JobFilter, JobSearch};
use quell::{Error, JobState, Key, QueueName, TaskName};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::config::duration;

/// A filter as people and programs write it: a job matches if all given members do.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams, clap::Args,
)]
#[serde(default, deny_unknown_fields)]
#[schema(as = JobFilter)]
#[into_params(parameter_in = Query)]
pub struct FilterText {
    /// Only of this task.
    #[arg(long, value_parser = as_option("task"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// Only of this queue.
    #[arg(long, value_parser = as_option("queue"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Only in this state: scheduled, running, succeeded, dead, cancelled, absorbed or unreadable.
    #[arg(long, value_parser = as_option("state"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Only of this debounce key.
    #[arg(long, value_parser = as_option("key"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Only of this partition.
    #[arg(long, value_parser = as_option("partition"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Only with this text in their last error, in capitals or not.
    #[arg(long, value_name = "TEXT", value_parser = as_option("error"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Only with this cause of their last error, as `quell dead causes` shows it.
    #[arg(long, value_name = "CAUSE", value_parser = as_option("cause"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Only those whose first trigger was accepted longer ago than this, such as `1h30m`.
    #[arg(long, value_name = "DURATION", value_parser = as_option("age"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age: Option<String>,
    /// Only those that wait and have been due for longer than this, such as `5m`.
    #[arg(long, value_name = "DURATION", value_parser = as_option("late"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late: Option<String>,
}

impl FilterText {
    /// The names of its members.
    pub const NAMES: [&'static str; 9] =
        ["task", "queue", "state", "key", "partition", "error", "cause", "age", "late"];

    /// The member of a name, to be set.
    pub fn member(&mut self, name: &str) -> Option<&mut Option<String>> {
        Some(match name {
            "task" => &mut self.task,
            "queue" => &mut self.queue,
            "state" => &mut self.state,
            "key" => &mut self.key,
            "partition" => &mut self.partition,
            "error" => &mut self.error,
            "cause" => &mut self.cause,
            "age" => &mut self.age,
            "late" => &mut self.late,
            _ => return None,
        })
    }

    /// The members that are given, with their names.
    #[must_use]
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut given = self.clone();
        let value = |name| Some((name, given.member(name)?.take()?));
        Self::NAMES.into_iter().filter_map(value).collect()
    }

    /// Whether it matches every job.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == FilterText::default()
    }

    /// What it means.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) that names the member.
    pub fn search(&self) -> quell::Result<JobSearch> {
        let length = |text: &String| duration::parse(text).map_err(|why| Error::invalid("", why));
        let search = JobSearch {
            filter: JobFilter {
                task: read("task", &self.task, TaskName::new)?,
                queue: read("queue", &self.queue, QueueName::new)?,
                state: read("state", &self.state, |text| state(text))?,
                key: read("key", &self.key, Key::new)?,
                ..JobFilter::default()
            },
            partition: read("partition", &self.partition, Key::new)?,
            error: self.error.clone(),
            cause: self.cause.clone(),
            age: read("age", &self.age, length)?,
            late: read("late", &self.late, length)?,
        };
        search.validate()?;
        Ok(search)
    }
}

/// Reads a member as an option of a command, which is misused where the member is wrong.
fn as_option(name: &'static str) -> impl Fn(&str) -> Result<String, Error> + Clone + Send + Sync {
    move |text| {
        let mut filter = FilterText::default();
        if let Some(member) = filter.member(name) {
            *member = Some(text.to_owned());
        }
        filter.search().map(|_| text.to_owned())
    }
}

/// Reads a member; its error has the member's name.
fn read<'t, T>(
    name: &'static str,
    text: &'t Option<String>,
    read: impl FnOnce(&'t String) -> quell::Result<T>,
) -> quell::Result<Option<T>> {
    let value = text.as_ref().map(read).transpose();
    value.map_err(|error| Error::invalid(name, error.to_string()))
}

fn state(text: &str) -> quell::Result<JobState> {
    let known = JobState::ALL.into_iter().find(|state| state.name() == text);
    known.ok_or_else(|| {
        let names = JobState::ALL.map(JobState::name).join(", ");
        Error::invalid("state", format!("{text:?} is not a state: give one of {names}"))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn r40_every_member_is_read_and_an_error_names_it() {
        let good =
            ["mail", "default", "dead", "k", "acme", "timed out", "no answer in Ns", "1h30m", "5m"];
        let bad = ["a b", "", "deaf", "", "", "", "", "soon", "0s"];
        for (name, (good, bad)) in FilterText::NAMES.into_iter().zip(good.into_iter().zip(bad)) {
            let with = |value: &str| {
                let mut text = FilterText::default();
                *text.member(name).unwrap() = Some(value.to_owned());
                text
            };
            let text = with(good);
            assert_eq!(text.pairs(), [(name, good.to_owned())]);
            let search = text.search().unwrap();
            assert_ne!(search, JobSearch::default(), "{name} counts");
            let error = with(bad).search().unwrap_err();
            assert_eq!(error.field(), Some(name), "{name}: {error}");
            let json = serde_json::to_string(&text).unwrap();
            assert_eq!(serde_json::from_str::<FilterText>(&json).unwrap(), text);
        }
        assert!(serde_json::from_str::<FilterText>(r#"{"tsak":"mail"}"#).is_err());
    }

    #[test]
    fn r40_lateness_of_jobs_that_do_not_wait_is_refused() {
        let late = |state: Option<&str>| FilterText {
            late: Some("1m".to_owned()),
            state: state.map(str::to_owned),
            ..FilterText::default()
        };
        let waits = late(None).search().unwrap();
        assert_eq!(waits.late, Some(Duration::from_secs(60)));
        assert!(late(Some("scheduled")).search().is_ok());
        assert_eq!(late(Some("dead")).search().unwrap_err().field(), Some("late"));
    }
}
