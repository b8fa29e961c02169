//! A timer in memory: for tests, and to learn from.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use quell_core::{Error, ErrorKind, Result, Timestamp};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::timer::{Delivery, Message, Received, ScheduleResult, Scheduled, Timer};

/// A timer in memory, whose clock a test moves. Clones are the same timer.
#[derive(Clone, Debug)]
pub struct MemoryTimer {
    kept: Arc<Mutex<Kept>>,
    changed: Arc<Notify>,
    /// Held by the receiver that is next: each is in its turn.
    turn: Arc<tokio::sync::Mutex<()>>,
    lock: Duration,
    /// For how long names of messages are remembered; none where messages of one name all come.
    duplicate_window: Option<Duration>,
    /// How often a message is delivered at most.
    most_deliveries: u32,
}

#[derive(Debug)]
struct Kept {
    now: Timestamp,
    /// Messages and deliveries so far: each has a number of its own.
    numbers: u64,
    /// How many messages were ever scheduled; duplicates are not counted.
    scheduled: u64,
    messages: BTreeMap<u64, Waiting>,
    /// Until when messages of a name are duplicates.
    names: BTreeMap<String, Timestamp>,
    dead: Vec<(Vec<u8>, String)>,
}

#[derive(Debug)]
struct Waiting {
    body: Vec<u8>,
    at: Timestamp,
    deliveries: u32,
    /// The delivery that holds it, and until when.
    held: Option<(u64, Timestamp)>,
}

impl Kept {
    /// Whether a message of this name came less than a window ago; if not, remembers this one.
    fn is_duplicate(&mut self, name: &str, window: Duration) -> bool {
        let now = self.now;
        self.names.retain(|_, until| now < *until);
        if self.names.contains_key(name) {
            return true;
        }
        self.names.insert(name.to_owned(), now + window);
        false
    }

    /// Puts aside what was delivered so often and is not held any more.
    fn put_aside(&mut self, most: u32) {
        let now = self.now;
        let is_over = |_: &u64, message: &mut Waiting| {
            message.deliveries >= most && message.held.is_none_or(|(_, until)| until <= now)
        };
        let over = self.messages.extract_if(.., is_over);
        let reason = format!("it was delivered {most} times and never completed");
        self.dead.extend(over.map(|(_, message)| (message.body, reason.clone())));
    }
}

impl MemoryTimer {
    /// A timer without messages whose clock stands at `now`, and whose locks hold so long.
    #[must_use]
    pub fn new(now: Timestamp, lock: Duration) -> Self {
        let (messages, names, dead) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let kept = Kept { now, numbers: 0, scheduled: 0, messages, names, dead };
        let (kept, changed, turn) = (Arc::new(Mutex::new(kept)), Arc::default(), Arc::default());
        let (duplicate_window, most_deliveries) = (None, u32::MAX);
        MemoryTimer { kept, changed, turn, lock, duplicate_window, most_deliveries }
    }

    /// The same timer, which deduplicates: of messages with one name that are scheduled within `window`
    /// after the first, it keeps the first, also where that one was completed since.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quell_core::Timestamp;
    /// use quell_portable::{MemoryTimer, Message, Timer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell_core::Result<()> {
    /// let now = Timestamp::from_secs(0);
    /// let timer = MemoryTimer::new(now, Duration::from_secs(30))
    ///     .with_duplicate_window(Duration::from_secs(600));
    /// let message = Message { body: b"once".to_vec(), name: Some("a".to_owned()) };
    /// timer.schedule(&message, now, now).await?;
    /// timer.schedule(&message, now, now).await?;
    /// assert_eq!(timer.waiting(), [now]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_duplicate_window(self, window: Duration) -> Self {
        MemoryTimer { duplicate_window: Some(window), ..self }
    }

    /// The same timer, which delivers a message at most so often: it puts one [aside](Self::dead) whose
    /// last lock ends before it is completed. Without this it delivers without end.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quell_core::Timestamp;
    /// use quell_portable::{MemoryTimer, Message, Timer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell_core::Result<()> {
    /// let now = Timestamp::from_secs(0);
    /// let timer = MemoryTimer::new(now, Duration::from_secs(30)).with_most_deliveries(2);
    /// timer.schedule(&Message { body: b"twice".to_vec(), name: None }, now, now).await?;
    /// for deliveries in [1, 2] {
    ///     assert_eq!(timer.receive(1, Duration::ZERO).await?[0].deliveries, deliveries);
    ///     timer.lose_locks();
    /// }
    /// assert!(timer.receive(1, Duration::ZERO).await?.is_empty());
    /// assert_eq!(timer.dead().len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_most_deliveries(self, most: u32) -> Self {
        MemoryTimer { most_deliveries: most, ..self }
    }

    fn locked(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves its clock to `now`, if that is later.
    pub fn advance(&self, now: Timestamp) {
        let mut kept = self.locked();
        kept.now = kept.now.max(now);
        drop(kept);
        self.changed.notify_waiters();
    }

    /// When the messages come that were neither completed nor put aside, the first one first.
    #[must_use]
    pub fn waiting(&self) -> Vec<Timestamp> {
        let mut waiting: Vec<Timestamp> =
            self.locked().messages.values().map(|message| message.at).collect();
        waiting.sort_unstable();
        waiting
    }

    /// How many messages were ever scheduled; duplicates are not counted.
    #[must_use]
    pub fn scheduled(&self) -> u64 {
        self.locked().scheduled
    }

    /// What was put aside, with the reasons.
    #[must_use]
    pub fn dead(&self) -> Vec<(Vec<u8>, String)> {
        self.locked().dead.clone()
    }

    /// Ends all locks, as where their holders are gone.
    pub fn lose_locks(&self) {
        self.locked().messages.values_mut().for_each(|message| message.held = None);
        self.changed.notify_waiters();
    }

    fn take(&self, most: usize) -> Vec<Received> {
        let mut kept = self.locked();
        kept.put_aside(self.most_deliveries);
        let Kept { now, numbers, messages, .. } = &mut *kept;
        let is_free = |message: &&mut Waiting| {
            message.at <= *now && message.held.is_none_or(|(_, until)| until <= *now)
        };
        let free = messages.values_mut().filter(is_free).take(most);
        let taken = free.map(|message| {
            *numbers = numbers.saturating_add(1);
            message.held = Some((*numbers, *now + self.lock));
            message.deliveries = message.deliveries.saturating_add(1);
            let delivery = Delivery::new(numbers.to_string());
            Received { body: message.body.clone(), deliveries: message.deliveries, delivery }
        });
        taken.collect()
    }

    /// Changes the message that a delivery holds; none removes it.
    fn change<R>(
        &self,
        delivery: &Delivery,
        change: impl FnOnce(&mut Kept, u64) -> R,
    ) -> Result<R> {
        let mut kept = self.locked();
        let now = kept.now;
        let holds = |(_, message): &(&u64, &Waiting)| {
            let held = message.held.filter(|(_, until)| *until > now);
            held.is_some_and(|(number, _)| number.to_string() == delivery.as_str())
        };
        let Some(number) = kept.messages.iter().find(holds).map(|(number, _)| *number) else {
            let message = format!("the lock of delivery {} was lost", delivery.as_str());
            return Err(Error::new(ErrorKind::NotFound, message));
        };
        let done = change(&mut kept, number);
        drop(kept);
        self.changed.notify_waiters();
        Ok(done)
    }
}

#[async_trait]
impl Timer for MemoryTimer {
    fn duplicate_window(&self) -> Option<Duration> {
        self.duplicate_window
    }

    fn most_bytes(&self) -> usize {
        64 << 10
    }

    fn lock(&self) -> Duration {
        self.lock
    }

    async fn schedule(&self, message: &Message, now: Timestamp, at: Timestamp) -> ScheduleResult {
        let mut kept = self.locked();
        if let (Some(name), Some(window)) = (&message.name, self.duplicate_window)
            && kept.is_duplicate(name, window)
        {
            return Ok(None);
        }
        kept.numbers = kept.numbers.saturating_add(1);
        kept.scheduled = kept.scheduled.saturating_add(1);
        let number = kept.numbers;
        let waiting = Waiting { body: message.body.clone(), at, deliveries: 0, held: None };
        kept.messages.insert(number, waiting);
        drop(kept);
        self.changed.notify_waiters();
        Ok((at > now).then(|| Scheduled::new(number.to_string())))
    }

    async fn cancel(&self, scheduled: &Scheduled) -> Result<()> {
        let mut kept = self.locked();
        let number = scheduled.as_str().parse::<u64>().ok().filter(|number| {
            let message = kept.messages.get(number);
            message.is_some_and(|message| message.deliveries == 0 && kept.now < message.at)
        });
        match number.and_then(|number| kept.messages.remove(&number)) {
            Some(_) => Ok(()),
            None => {
                let message = format!("message {} is due, or gone", scheduled.as_str());
                Err(Error::new(ErrorKind::NotFound, message))
            }
        }
    }

    async fn receive(&self, most: usize, wait: Duration) -> Result<Vec<Received>> {
        let deadline = Instant::now() + wait;
        let Ok(_turn) = timeout_at(deadline, self.turn.lock()).await else { return Ok(Vec::new()) };
        loop {
            let changed = self.changed.notified();
            let taken = self.take(most);
            if !taken.is_empty() || timeout_at(deadline, changed).await.is_err() {
                return Ok(taken);
            }
        }
    }

    async fn peek(&self, most: usize) -> Result<Vec<Vec<u8>>> {
        Ok(self.locked().messages.values().take(most).map(|waiting| waiting.body.clone()).collect())
    }

    async fn renew(&self, delivery: &Delivery) -> Result<Delivery> {
        let lock = self.lock;
        self.change(delivery, |kept, number| {
            let until = kept.now + lock;
            if let Some((_, held)) = kept.messages.get_mut(&number).and_then(|m| m.held.as_mut()) {
                *held = until;
            }
            delivery.clone()
        })
    }

    async fn complete(&self, delivery: &Delivery) -> Result<()> {
        self.change(delivery, |kept, number| drop(kept.messages.remove(&number)))
    }

    async fn abandon(&self, delivery: &Delivery) -> Result<()> {
        self.change(delivery, |kept, number| {
            if let Some(message) = kept.messages.get_mut(&number) {
                message.held = None;
            }
        })
    }

    async fn dead_letter(&self, delivery: &Delivery, reason: &str) -> Result<()> {
        self.change(delivery, |kept, number| {
            if let Some(message) = kept.messages.remove(&number) {
                kept.dead.push((message.body, reason.to_owned()));
            }
        })
    }
}
