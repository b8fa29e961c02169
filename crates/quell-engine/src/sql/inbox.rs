//! The inbox: triggers that callers' transactions have left (R4), until a store call accepts them.

use quell_core::{Batch, Result};

/// Rows of the inbox, in order.
#[derive(Debug)]
pub struct Inbox<'r> {
    /// The batches to accept.
    pub batches: Vec<Batch>,
    /// The number and the text of each of them.
    sources: Vec<(i64, &'r str)>,
}

/// A row that cannot be accepted, which a store keeps where an operator finds it.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused<'r> {
    /// The number of the row.
    pub id: i64,
    /// Its text.
    pub triggers: &'r str,
    /// The reason.
    pub why: String,
}

impl<'r> Inbox<'r> {
    /// Decodes rows of a number and a text each; returns those that cannot be decoded beside.
    #[must_use]
    pub fn decode(rows: Vec<(i64, &'r str)>) -> (Self, Vec<Refused<'r>>) {
        let (mut batches, mut sources) = (Vec::with_capacity(rows.len()), Vec::new());
        let mut refused = Vec::new();
        for (id, triggers) in rows {
            match Batch::from_inbox(triggers) {
                Ok(batch) => {
                    batches.push(batch);
                    sources.push((id, triggers));
                }
                Err(why) => refused.push(Refused { id, triggers, why }),
            }
        }
        (Inbox { batches, sources }, refused)
    }

    /// The rows whose batches were not accepted, by the answer to each. R19: no caller waits for these
    /// answers.
    #[must_use]
    pub fn refused_by<T>(self, answers: Vec<Result<T>>) -> Vec<Refused<'r>> {
        let refused = self.sources.into_iter().zip(answers).filter_map(|(source, answer)| {
            let ((id, triggers), why) = (source, answer.err()?.to_string());
            Some(Refused { id, triggers, why })
        });
        refused.collect()
    }
}

#[cfg(test)]
mod tests {
    use quell_core::{Error, ErrorKind};

    use super::*;

    #[test]
    fn r4_rows_that_cannot_be_accepted_keep_their_number_and_text() {
        const EMPTY: &str = "[[],null]";
        let (inbox, undecoded) = Inbox::decode(vec![(1, EMPTY), (2, "{"), (3, EMPTY)]);
        let undecoded: Vec<_> = undecoded.iter().map(|row| (row.id, row.triggers)).collect();
        assert_eq!(undecoded, [(2, "{")]);
        assert_eq!(inbox.batches.len(), 2);
        let answers = vec![Ok(()), Err(Error::new(ErrorKind::IdempotencyConflict, "taken"))];
        assert_eq!(
            inbox.refused_by(answers),
            [Refused { id: 3, triggers: EMPTY, why: "taken".to_owned() }]
        );
    }
}
