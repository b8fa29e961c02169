//! Which jobs of a line are looked at.

use crate::backend::Note;

/// Which jobs of a line a scan is about. A backend may answer with others, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lanes {
    /// All of them.
    #[default]
    All,
    /// Those without a partition.
    Plain,
    /// The first of each partition and priority. A backend that finds them without a look at those behind
    /// them keeps a claim from costing more where more jobs of a partition wait.
    Heads,
}

impl Lanes {
    /// Whether a job with this note is meant; of a partition more than the first may be.
    #[must_use]
    pub fn takes(self, note: Option<&Note>) -> bool {
        let partition = note.and_then(|note| note.partition.as_ref());
        match self {
            Lanes::All => true,
            Lanes::Plain => partition.is_none(),
            Lanes::Heads => partition.is_some(),
        }
    }
}
