//! Rules that hide members of a task's documents from people: in the API, the command line, logs, errors and
//! traces. Handlers and callers get them as they are.
//!
//! `path` finds the members, `document` writes a document without them, and their values are hidden in texts,
//! too, such as the error of an attempt.

mod document;
mod path;
mod texts;

use std::collections::BTreeMap;
use std::sync::Arc;

use quell::dead::DeadExport;
use quell::effect::Effect;
use quell::job::Explanation;
use quell::schedule::ScheduleInfo;
use quell::{Error, Fold, Job, Payload, Result, TaskName};

use crate::config::DeclaredTask;
use path::Path;
pub use texts::Texts;

/// What stands in place of a value.
pub const MASK: &str = "[redacted]";
/// A payload that may be an array of payloads.
const EITHER: Fold = Fold::Collect { cap: 1 };
/// The most rules of a task.
pub const MAX_RULES: usize = 100;

/// The rules of a task.
#[derive(Clone, Debug, Default)]
pub struct Redact(Arc<[Path]>);

impl Redact {
    /// Reads paths such as `/card/number`, `/items/*/token` and `/**/password`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) that names the path and what is wrong with it.
    pub fn new(paths: &[String]) -> Result<Self> {
        if paths.len() > MAX_RULES {
            let message = format!(
                "{} paths are redacted, the limit is {MAX_RULES}: hide objects",
                paths.len()
            );
            return Err(Error::invalid("redact", message));
        }
        paths.iter().map(|path| Path::new(path)).collect::<Result<_>>().map(Redact)
    }

    /// Whether there is no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A payload for people. One that was collected is an array of payloads.
    #[must_use]
    pub fn payload(&self, payload: &Payload, fold: &Fold) -> Payload {
        Payload::from_stored(document::redacted(payload.as_str(), &self.below(fold)))
    }

    /// The values that a payload hides, for texts about its job. One that is an array may have been collected,
    /// whatever its task does now.
    #[must_use]
    pub fn texts(&self, payload: &Payload) -> Texts {
        if self.is_empty() {
            return Texts::default();
        }
        Texts::new(&document::hidden(payload.as_str(), &self.below(&EITHER)))
    }

    /// An edited payload with the values that its editor did not see: where the mask stands in a redacted
    /// place, that of the payload before.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) for a mask where the payload before has nothing.
    pub fn unmask(&self, edited: &Payload, before: &Payload, fold: &Fold) -> Result<Payload> {
        let restored = document::restored(edited.as_str(), before.as_str(), &self.below(fold));
        restored.map(Payload::from_stored).ok_or_else(|| {
            let message = format!(
                "payload has {MASK:?} in a redacted place, and which value is meant is not certain: \
                 give the value"
            );
            Error::invalid("payload", message)
        })
    }

    /// The rules for a whole payload of this fold.
    fn below(&self, fold: &Fold) -> Vec<Path> {
        let mut paths = self.0.to_vec();
        if fold.collects() {
            paths.extend(self.0.iter().map(Path::of_each));
        }
        paths
    }

    /// Another document of the task, such as an output: by the same paths, and without the values of its
    /// payload.
    fn other(&self, found: &Payload, texts: &Texts) -> Payload {
        Payload::from_stored(texts.document(&document::redacted(found.as_str(), &self.0)))
    }

    /// Hides in a job what is hidden, and the values in its texts.
    fn job(&self, job: &mut Job, texts: &Texts) {
        job.payload = self.payload(&job.payload, &job.shape.fold);
        job.output = job.output.as_ref().map(|output| self.other(output, texts));
        job.error = job.error.take().map(|error| texts.hide(error));
    }

    fn effects(&self, effects: &mut [Effect], texts: &Texts) {
        let done = effects.iter_mut().filter_map(|effect| effect.done.as_mut());
        done.for_each(|done| done.result = self.other(&done.result, texts));
    }
}

/// The rules of all tasks of a server, by their tasks. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Rules(Arc<BTreeMap<TaskName, Redact>>);

impl Rules {
    /// The rules of declared tasks, and with them those of tasks that were declared before and are no more: a
    /// file that was read half-written, or that a task was taken out of, shows nothing of the jobs that it left.
    #[must_use]
    pub fn after(before: &Rules, tasks: &BTreeMap<TaskName, DeclaredTask>) -> Self {
        let declared = tasks.iter().map(|(name, task)| (name, &task.redact));
        let left = before.0.iter().filter(|(name, _)| !tasks.contains_key(*name));
        let all = declared.chain(left).filter(|(_, redact)| !redact.is_empty());
        Rules(Arc::new(all.map(|(name, redact)| (name.clone(), redact.clone())).collect()))
    }

    /// Whether no task has rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tasks with rules that are not among these.
    pub fn left_by<'r>(
        &'r self,
        tasks: &BTreeMap<TaskName, DeclaredTask>,
    ) -> impl Iterator<Item = &'r TaskName> {
        self.0.keys().filter(|name| !tasks.contains_key(*name))
    }

    /// The rules of a task; none where it has none.
    #[must_use]
    pub fn of(&self, task: &TaskName) -> Option<&Redact> {
        self.0.get(task)
    }

    /// Hides what the rules say, in jobs; their documents are shown or not.
    pub fn jobs<'j>(&self, jobs: impl IntoIterator<Item = &'j mut Job>, are_shown: bool) {
        for job in jobs {
            let Some(redact) = self.of(&job.task) else { continue };
            // The values are looked for where a text may have them.
            let has_texts = job.error.is_some() || (are_shown && job.output.is_some());
            let texts = if has_texts { redact.texts(&job.payload) } else { Texts::default() };
            if are_shown {
                redact.job(job, &texts);
            } else {
                job.error = job.error.take().map(|error| texts.hide(error));
            }
        }
    }

    /// Hides what the rules say, in all that is known of a job; what comes back hides it in texts about the job.
    pub fn explanation(&self, found: &mut Explanation) -> Texts {
        let Some(redact) = self.of(&found.job.task) else { return Texts::default() };
        let fold = found.job.shape.fold.clone();
        let mut texts = redact.texts(&found.job.payload);
        if let Some(original) = &mut found.past.original {
            texts = texts.and(&redact.texts(original));
            *original = redact.payload(original, &fold);
        }
        redact.job(&mut found.job, &texts);
        redact.effects(&mut found.effects, &texts);
        for attempt in &mut found.attempts {
            attempt.error = attempt.error.take().map(|error| texts.hide(error));
        }
        texts
    }

    /// Hides what the rules say, in the triggers of schedules.
    pub fn schedules<'s>(&self, schedules: impl IntoIterator<Item = &'s mut ScheduleInfo>) {
        for info in schedules {
            let trigger = &mut info.schedule.trigger;
            if let Some(redact) = self.of(&trigger.task) {
                trigger.payload = redact.payload(&trigger.payload, &Fold::Last);
            }
        }
    }

    /// The first job of an export whose task has rules: an export has its whole payload.
    #[must_use]
    pub fn first_of<'e>(&self, exports: &'e [DeadExport]) -> Option<&'e Job> {
        exports.iter().map(|export| &export.job).find(|job| self.of(&job.task).is_some())
    }
}
