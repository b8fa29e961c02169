//! What a handler does, the same in every peer: it reports its start, and holds on to its job where
//! the worker is to be killed with the job in hand.

use std::time::Instant;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Where a handler reports that it started.
#[derive(Clone, Debug)]
pub struct Starts {
    sender: UnboundedSender<Instant>,
    holds: bool,
}

impl Starts {
    /// Where handlers report to, and where their reports arrive; they hold on to their jobs where
    /// `holds` is set.
    #[must_use]
    pub fn channel(holds: bool) -> (Self, UnboundedReceiver<Instant>) {
        let (sender, receiver) = unbounded_channel();
        (Starts { sender, holds }, receiver)
    }

    /// The whole of a handler.
    pub async fn report(&self) {
        self.started();
        if self.holds {
            std::future::pending().await
        }
    }

    /// Reports a start of a handler that runs elsewhere, and holds there where [`holds`](Self::holds)
    /// says so.
    pub fn started(&self) {
        // Workloads that do not listen have dropped the other end.
        let _unheard = self.sender.send(Instant::now());
    }

    /// Whether handlers never end.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.holds
    }
}
