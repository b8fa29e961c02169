//! What most of the work is made of, one script for each call: accepting triggers, starting jobs,
//! ending attempts well, renewing leases, and looking whether anything is due.
//!
//! A script knows the common cases only. It says so before it writes where a case is another one,
//! and then the engine takes its step, which knows all cases. `lua/begin.lua` is what the scripts have in
//! common.

mod claim;
mod enqueue;
mod held;
mod lines;
mod look;
mod overview;
mod plan;
mod prune;
mod renew;
mod settle;

use std::collections::BTreeMap;
use std::time::Duration;

use quell_core::part::Notifications;
use quell_core::{QueueName, Result, Timestamp};
use redis::Value;

pub(crate) use self::held::Held;
pub(crate) use self::lines::Lines;
pub(crate) use self::plan::parts;
use crate::known::Known;
use crate::link::{Script, ScriptCall};
use crate::look::{maybe_bytes, text, values};
use crate::open::Numbered;
use crate::pack::{Item, pack};
use crate::row::corrupt;
use crate::shard::{Shard, Time};

/// How often names are read again for one call before the engine takes its step.
const TRIES: u32 = 3;
/// Longer than this, sums of times may leave what Lua's numbers can hold.
const LONGEST: u64 = 1 << 51;

/// The scripts of one call.
#[derive(Debug)]
pub(crate) struct Hot {
    enqueue: Script,
    claim: Script,
    /// The first part of a claim, which starts nothing.
    next: Script,
    settle: Script,
    renew: Script,
}

impl Hot {
    pub(crate) fn new() -> Self {
        let begin = include_str!("../lua/begin.lua");
        let script = |code| Script::writing(&[begin, code].concat());
        let (next, start) = (include_str!("../lua/claim.lua"), include_str!("../lua/start.lua"));
        Hot {
            enqueue: script(include_str!("../lua/enqueue.lua")),
            claim: script(&[next, start].concat()),
            next: Script::reading(&[begin, next].concat()),
            settle: script(include_str!("../lua/settle.lua")),
            renew: script(include_str!("../lua/renew.lua")),
        }
    }
}

/// What a script is asked.
#[derive(Debug)]
struct Request {
    keys: Numbered,
    asked: Vec<Item>,
}

/// What a script did.
#[derive(Debug)]
struct Answer {
    /// When the script ran, which is the time of what it did.
    at: Timestamp,
    /// The highest time that this process has seen.
    now: Timestamp,
    values: std::vec::IntoIter<Value>,
}

impl Shard {
    /// The keys of a request, which the scripts know by their places.
    fn first_keys(&self, others: impl IntoIterator<Item = String>) -> Numbered {
        let mut keys = Numbered::new(self.keys.clock());
        for key in [self.keys.meta(), self.keys.jobs()].into_iter().chain(others) {
            keys.number(key);
        }
        keys
    }

    /// Runs a script of one call; none where the case is not one of the common ones, and nothing
    /// was written.
    async fn run(
        &self,
        what: &'static str,
        script: &Script,
        time: Time,
        request: impl Fn(&Known) -> Result<Option<Request>> + Send,
    ) -> Result<Option<Answer>> {
        if self.steps_only {
            return Ok(None);
        }
        for _ in 0..TRIES {
            let known = self.known();
            let Some(Request { keys, asked }) = request(&known)? else { return Ok(None) };
            let (time, asked) = (self.time_argument(time), pack(&asked));
            let version = known.version.clone().unwrap_or_default();
            let args = [time.as_bytes(), version.as_slice(), asked.as_slice()];
            let keys = keys.into_names();
            let call = ScriptCall { script, keys: &keys, args: &args };
            let answer = self.link.ask(what, call).await?;
            let mut values = values(answer)?.into_iter();
            let first = text(values.next().unwrap_or(Value::Nil))?;
            match first.as_str() {
                "general" => return Ok(None),
                "stale" => drop(self.learn().await?),
                now => {
                    let now = now.parse().map_err(|_| corrupt(format_args!("the time {now:?}")))?;
                    let at = Timestamp::from_micros(now);
                    return Ok(Some(Answer { at, now: self.see(at), values }));
                }
            }
        }
        Ok(None)
    }
}

impl Answer {
    fn next(&mut self) -> Result<Value> {
        self.values.next().ok_or_else(|| corrupt("an answer that ends too soon"))
    }

    fn number(&mut self) -> Result<i64> {
        match self.next()? {
            Value::Int(number) => Ok(number),
            other => Err(corrupt(format_args!("the answer {other:?}"))),
        }
    }

    /// A number that is not below zero.
    fn count(&mut self) -> Result<u64> {
        let number = self.number()?;
        u64::try_from(number).map_err(|_| corrupt(format_args!("the number {number}")))
    }

    /// The rest: queues in which something may start earlier, and when.
    fn wakes(&mut self) -> Result<BTreeMap<QueueName, Timestamp>> {
        let mut wakes = BTreeMap::new();
        while let Some(queue) = self.values.next() {
            let due = self.moment()?.ok_or_else(|| corrupt("a hint without its time"))?;
            wakes.insert(QueueName::new(text(queue)?)?, due);
        }
        Ok(wakes)
    }

    /// A moment that was written as text, or none.
    fn moment(&mut self) -> Result<Option<Timestamp>> {
        let value = self.next()?;
        maybe_bytes(value)?
            .map(|bytes| crate::look::moment(&String::from_utf8_lossy(&bytes)))
            .transpose()
    }
}

/// Adds hints to those of other scripts of the call.
fn add_wakes(news: &mut Notifications, wakes: BTreeMap<QueueName, Timestamp>) {
    for (queue, due) in wakes {
        let first = news.wakes.entry(queue).or_insert(due);
        *first = due.min(*first);
    }
}

/// A duration that scripts may add to times; none for a longer one.
fn exact(duration: Duration) -> Option<i64> {
    let micros = u64::try_from(duration.as_micros()).ok()?;
    i64::try_from(micros).ok().filter(|_| micros < LONGEST)
}

/// A moment that scripts may reckon with; none for one that is further away.
fn exact_moment(at: Timestamp) -> Option<i64> {
    let micros = at.as_micros();
    (micros.unsigned_abs() < LONGEST).then_some(micros)
}
