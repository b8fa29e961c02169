//! Paths to members of a JSON document: JSON Pointer (RFC 6901), with `*` for any member or element and `**`
//! for any number of levels.

use std::sync::Arc;

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

/// A path, or the end of one. Clones share the steps.
#[derive(Clone, Debug)]
pub(super) struct Path {
    steps: Arc<[Step]>,
    from: usize,
}

impl PartialEq for Path {
    fn eq(&self, other: &Self) -> bool {
        self.left() == other.left()
    }
}

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
            _ => Ok(Path { steps: steps.into(), from: 0 }),
        }
    }

    /// The same path in each element of an array.
    pub(super) fn of_each(&self) -> Self {
        let steps = std::iter::once(Step::Any).chain(self.left().iter().cloned()).collect();
        Path { steps, from: 0 }
    }

    /// What is left of the path below a member or element; it may be left in two ways.
    pub(super) fn below(&self, name: &str) -> Vec<Path> {
        let rest = || Path { steps: Arc::clone(&self.steps), from: self.from.saturating_add(1) };
        match self.left().first() {
            Some(Step::Named(own)) if own == name => vec![rest()],
            Some(Step::Any) => vec![rest()],
            Some(Step::Deep) => {
                let mut below = vec![self.clone()];
                below.extend(rest().below(name));
                below
            }
            Some(Step::Named(_)) | None => Vec::new(),
        }
    }

    /// Whether it ends here.
    pub(super) fn is_end(&self) -> bool {
        self.left().is_empty()
    }

    fn left(&self) -> &[Step] {
        self.steps.get(self.from..).unwrap_or_default()
    }
}

fn step(text: &str) -> Step {
    match text {
        "*" => Step::Any,
        "**" => Step::Deep,
        name => Step::Named(name.replace("~1", "/").replace("~0", "~")),
    }
}
