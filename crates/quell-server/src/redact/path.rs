//! Paths to members of a JSON document: JSON Pointer (RFC 6901), with `*` for any member or element and `**`
//! for any number of levels.

use quell::{Error, Result};

/// The most steps of a path.
const MAX_STEPS: usize = 32;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The member of this name, or the element of this number.
    Named(String),
    /// Any member or element.
    Any,
    /// Any number of levels, none included.
    Deep,
}

/// A path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path(Vec<Step>);

impl Path {
    pub(super) fn new(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            let message = format!(
                "the path {text:?} {why}: write /card/number, /items/*/token or /**/password"
            );
            Error::invalid("redact", message)
        };
        let steps = text.strip_prefix('/').ok_or_else(|| wrong("does not begin with /"))?;
        let steps: Vec<Step> = steps.split('/').map(step).collect();
        match steps.last() {
            Some(Step::Deep) => Err(wrong("ends with **, which would hide nothing by name")),
            _ if steps.len() > MAX_STEPS => Err(wrong("has more than 32 steps")),
            _ => Ok(Path(steps)),
        }
    }

    /// The same path in each element of an array.
    pub(super) fn of_each(&self) -> Self {
        Path(std::iter::once(Step::Any).chain(self.0.iter().cloned()).collect())
    }

    /// What is left of the path below a member or element; it may be left in two ways.
    pub(super) fn below(&self, name: &str) -> Vec<Path> {
        let rest = |from: usize| Path(self.0.get(from..).unwrap_or_default().to_vec());
        match self.0.first() {
            Some(Step::Named(own)) if own == name => vec![rest(1)],
            Some(Step::Any) => vec![rest(1)],
            Some(Step::Deep) => {
                let mut below = vec![self.clone()];
                below.extend(rest(1).below(name));
                below
            }
            Some(Step::Named(_)) | None => Vec::new(),
        }
    }

    /// Whether it ends here.
    pub(super) fn is_end(&self) -> bool {
        self.0.is_empty()
    }
}

fn step(text: &str) -> Step {
    match text {
        "*" => Step::Any,
        "**" => Step::Deep,
        name => Step::Named(name.replace("~1", "/").replace("~0", "~")),
    }
}
