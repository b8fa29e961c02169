//! Hot paths: operations that a backend takes by itself, where it has a faster way.

use quell_core::{Answer, Operation, Result, Timestamp};

use crate::backend::Backend;
use crate::engine::Engine;

impl<B: Backend> Engine<B> {
    /// Offers an operation to the backend; none where it declines.
    ///
    /// # Errors
    /// As those of the operation.
    pub(crate) async fn offer(
        &self,
        now: Option<Timestamp>,
        operation: Operation,
    ) -> Result<Option<Answer>> {
        let Some(taken) = self.backend.hot_path(now, &operation).await? else { return Ok(None) };
        let (answer, news) = taken;
        self.spread(news);
        Ok(Some(answer))
    }
}

/// Offers an operation to a backend that has a hot path for it, and returns the answer if it is taken.
macro_rules! offer {
    ($self:ident, $name:ident, $now:ident, $variant:ident { $($field:ident: $value:expr),* }) => {
        if $self.backend.hot_paths().contains(&stringify!($name)) {
            let operation = quell_core::Operation::$variant { $($field: $value),* };
            match $self.offer($now, operation).await? {
                Some(quell_core::Answer::$variant(answer)) => return Ok(answer),
                Some(other) => return Err(other.is_not_of(stringify!($name))),
                None => {}
            }
        }
    };
}
pub(crate) use offer;
