//! A clock of a client and its worker that runs some times as fast as the machine's, so that a test need
//! not wait for minutes. The service's time is its own.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell::Timestamp;
use quell::clock::Clock;

use crate::timers::now;

#[derive(Debug)]
pub(crate) struct Quick {
    began: Instant,
    began_at: Timestamp,
    times: u32,
}

impl Quick {
    pub(crate) fn new(times: u32) -> Self {
        Quick { began: Instant::now(), began_at: now(), times }
    }

    /// How long so much of this clock's time takes.
    pub(crate) fn takes(&self, time: Duration) -> Duration {
        time / self.times
    }
}

impl Clock for Quick {
    fn now(&self) -> Timestamp {
        self.began_at + self.began.elapsed() * self.times
    }

    fn store_time(&self) -> Option<Timestamp> {
        None
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        tokio::time::sleep(self.takes(at.since(self.now()))).boxed()
    }
}
