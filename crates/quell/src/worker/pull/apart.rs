//! Settlements of one call, so that one which the store can never take fails no other.
//!
//! A store takes the settlements of a call together. Where it fails for good, the call is repeated in
//! halves until the settlements at fault are alone. Those that a failed call has committed are
//! answered as repeats.

use quell_core::{Error, ErrorKind, Result, Settlement};

use super::{PullSettled, PullTasks};

/// The most settlements of a call that are found at fault. With more, the store itself is.
const MOST_AT_FAULT: usize = 8;

impl PullTasks {
    /// Settles, with an error for each settlement that the store did not take.
    ///
    /// # Errors
    /// The first of them, where it took none.
    pub(super) async fn settle_apart(
        &self,
        settlements: &[Settlement],
    ) -> Result<Vec<Result<PullSettled>>> {
        let mut answers = Vec::with_capacity(settlements.len());
        let mut left = vec![settlements];
        let (mut at_fault, mut is_over) = (0, false);
        while let Some(next) = left.pop() {
            let error = match self.quell.store().settle(self.store_time(), next.to_vec()).await {
                Ok(settled) => {
                    let became = settled.iter().map(|one| one.became);
                    answers
                        .extend(became.map(|became| Ok(PullSettled { became, is_repeat: false })));
                    continue;
                }
                Err(error) => error,
            };
            is_over |= !is_for_good(&error) || at_fault >= MOST_AT_FAULT;
            let (first, second) = next.split_at(next.len() / 2);
            if !is_over && !first.is_empty() {
                left.extend([second, first]);
                continue;
            }
            at_fault += 1;
            // Where the store is at fault, the rest would fare no better.
            let rest: usize =
                if is_over { left.drain(..).map(<[Settlement]>::len).sum() } else { 0 };
            answers.extend((0..next.len() + rest).map(|_| Err(error.share())));
        }
        match answers.iter().all(Result::is_err).then(|| answers.pop()).flatten() {
            Some(Err(error)) => Err(error),
            _ => Ok(answers),
        }
    }
}

/// Whether a repeat of the call fails again.
fn is_for_good(error: &Error) -> bool {
    !error.is_retryable() && error.kind() != ErrorKind::UnknownOutcome
}
