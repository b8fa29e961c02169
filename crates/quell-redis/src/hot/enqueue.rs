//! Accepting triggers by one script (R6, R7, R9).
//!
//! Batches of other kinds, and those whose window has a history that asks for more, take the step
//! that knows all cases.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use quell_core::history::Event;
use quell_core::part::Notifications;
use quell_core::trigger::Keyed;
use quell_core::{Batch, JobId, Key, NewTrigger, Now, Receipt, Result, Timestamp, TriggerId, When};
use redis::Value;

use super::plan::{Burst, Gathered, lane_of};
use super::{Answer, Request, add_wakes, exact};
use quell_engine::Taken as Answered;

use crate::backend::RedisBackend;
use crate::commit::lane_member;
use crate::known::Known;
use crate::look::maybe_bytes;
use crate::open::Numbered;
use crate::pack::{Item, list};
use crate::row::{corrupt, decode_job, short_bound};
use crate::shard::Shard;

/// The answer to each batch of a call, once it is there.
type Answers = Vec<Option<Result<Vec<Receipt>>>>;

/// What an item of a script is.
const PLAIN: i64 = 0;
const AT: i64 = 1;
const KEYED: i64 = 2;

impl RedisBackend {
    /// Accepts as many of these batches as one script takes, from the first on, each whole or not at all.
    /// Those that it leaves have no answer.
    pub(crate) async fn accept_some(&self, now: Now, batches: &[Batch]) -> Answered<Answers> {
        let places: Vec<usize> = (0..batches.len()).collect();
        let gathered = Gathered::of(batches, &places);
        let mut news = Notifications::default();
        if gathered.batches == 0 {
            return Ok(Some((vec![None], news)));
        }
        let taken = batches.get(..gathered.batches).unwrap_or_default();
        let mut receipts: BTreeMap<usize, Vec<Option<Receipt>>> = BTreeMap::new();
        for (place, batch) in taken.iter().enumerate() {
            receipts.insert(place, vec![None; batch.triggers.len()]);
        }
        self.run_gathered(now, &gathered, (&mut receipts, &mut news)).await?;
        let answers = receipts.into_values().map(|receipts| {
            let receipts: Option<Vec<Receipt>> = receipts.into_iter().collect();
            receipts.map(Ok)
        });
        Ok(Some((answers.collect(), news)))
    }

    async fn run_gathered(
        &self,
        now: Now,
        gathered: &Gathered<'_>,
        (receipts, news): (&mut BTreeMap<usize, Vec<Option<Receipt>>>, &mut Notifications),
    ) -> Result<()> {
        if gathered.bursts.is_empty() {
            return Ok(());
        }
        let shard = &self.shard;
        let request = |known: &Known| request((shard, self.records), known, gathered);
        let script = &shard.scripts.hot.enqueue;
        let _shared = shard.accepting.read().await;
        let answer = shard.run("accept triggers", script, now.into(), request).await?;
        let Some(mut answer) = answer else { return Ok(()) };
        for burst in &gathered.bursts {
            let taken = Taken::read(&mut answer)?;
            let Some(taken) = taken else { continue };
            if self.records {
                taken.record(burst, answer.at, (&shard.known(), answer.next()?), news)?;
            }
            for ((batch, own), receipt) in burst.members.iter().zip(taken.receipts(burst)) {
                let place = receipts.get_mut(batch).and_then(|of_batch| of_batch.get_mut(*own));
                if let Some(place) = place {
                    *place = Some(receipt);
                }
            }
        }
        add_wakes(news, answer.wakes()?);
        shard.steps.spared();
        Ok(())
    }
}

/// What became of an item.
#[derive(Debug)]
struct Taken {
    job: JobId,
    due: Timestamp,
    triggers: u64,
    is_new: bool,
}

impl Taken {
    /// None where it was left.
    fn read(answer: &mut Answer) -> Result<Option<Self>> {
        let (job, due) = (answer.count()?, Timestamp::from_micros(answer.number()?));
        let (triggers, is_new) = (answer.count()?, answer.count()? == 1);
        let taken = Taken { job: JobId::new(job), due, triggers, is_new };
        Ok((job > 0).then_some(taken))
    }

    /// Records its window, as it stood after each of its triggers.
    fn record(
        &self,
        burst: &Burst<'_>,
        now: Timestamp,
        (known, row): (&Known, Value),
        news: &mut Notifications,
    ) -> Result<()> {
        let row = maybe_bytes(row)?.ok_or_else(|| corrupt("a job was accepted without a row"))?;
        // At least as new as what the script checked.
        let mut job = decode_job(self.job, &row, known)?;
        for count in self.counts(burst) {
            job.window.triggers = count;
            news.events.push(Event::window(now, &job));
        }
        Ok(())
    }

    /// How many triggers its window had after each of these.
    fn counts(&self, burst: &Burst<'_>) -> RangeInclusive<u64> {
        let count = u64::try_from(burst.members.len()).unwrap_or(u64::MAX);
        let before = self.triggers.saturating_sub(count);
        before.saturating_add(1)..=self.triggers
    }

    /// The receipts of the last triggers of its window. The first trigger may have opened the window.
    fn receipts(&self, burst: &Burst<'_>) -> impl Iterator<Item = Receipt> {
        let Taken { job, due, is_new, .. } = *self;
        self.counts(burst).map(move |seq| {
            let trigger = TriggerId { job, seq };
            if is_new && seq == 1 {
                Receipt::Accepted { job, trigger, due }
            } else {
                Receipt::Debounced { job, trigger, triggers: seq, due }
            }
        })
    }
}

/// Lanes of a call, each once.
#[derive(Default)]
struct Lanes<'b> {
    items: Vec<Item>,
    places: HashMap<(u32, Option<&'b Key>), usize>,
}

impl<'b> Lanes<'b> {
    /// A lane's number in the call, from 1; none where its name is new.
    fn place(
        &mut self,
        shard: &Shard,
        known: &Known,
        keys: &mut Numbered,
        trigger: &'b NewTrigger,
    ) -> Option<usize> {
        let number = known.lane_number(&lane_of(trigger))?;
        let next = self.items.len().saturating_add(1);
        let place = *self.places.entry((number, trigger.partition.as_ref())).or_insert(next);
        if place == next {
            let name = lane_member(number, trigger.partition.as_ref());
            let NewTrigger { queue, task, .. } = trigger;
            self.items.push(list![
                keys.number(shard.keys.heads(queue)),
                keys.number(shard.keys.line(&name)),
                name,
                queue.as_str(),
                task.as_str(),
                i64::from(number),
                keys.number(shard.keys.recent(task)),
                trigger.partition.as_ref().map_or(Item::NOTHING, |one| Item::from(one.as_str())),
            ]);
        }
        Some(place)
    }
}

fn request(
    (shard, records): (&Shard, bool),
    known: &Known,
    gathered: &Gathered<'_>,
) -> Result<Option<Request>> {
    let own = &shard.keys;
    let mut keys = shard.first_keys([own.seq(), own.counts(), own.runs(), own.waiting()]);
    let mut lanes = Lanes::default();
    let mut items = Vec::new();
    for burst in &gathered.bursts {
        let Some(lane) = lanes.place(shard, known, &mut keys, burst.last) else { return Ok(None) };
        let is_exact = match &burst.last.keyed {
            None => plain_item(lane, burst).map(|item| items.extend(item)),
            Some(keyed) => {
                let hash = keys.number(own.debounce(&burst.last.task, &keyed.key));
                keyed_item((lane, hash), known, burst, keyed).map(|item| items.extend(item))
            }
        };
        if is_exact.is_none() {
            return Ok(None);
        }
    }
    let asked = vec![
        Item::from_count(shard.ids.first),
        Item::from_count(shard.ids.step),
        Item::from(shard.channel.clone()),
        Item::from(shard.origin.clone()),
        Item::from(gathered.is_whole),
        Item::from(records),
        Item::List(lanes.items),
        Item::List(items),
    ];
    Ok(Some(Request { keys, asked }))
}

/// None where its delay is longer than scripts can reckon with.
fn plain_item(lane: usize, burst: &Burst<'_>) -> Option<[Item; 5]> {
    let trigger = burst.last;
    let (kind, asked) = match trigger.when {
        When::Now => (PLAIN, Item::NOTHING),
        When::After(delay) => (PLAIN, exact(delay)?.into()),
        When::At(at) => (AT, at.as_micros().into()),
    };
    Some([lane.into(), kind.into(), trigger.payload.as_str().into(), asked, traces_of(burst)])
}

/// None where its thresholds are longer than scripts can reckon with.
fn keyed_item(
    (lane, hash): (usize, usize),
    known: &Known,
    burst: &Burst<'_>,
    keyed: &Keyed,
) -> Option<[Item; 9]> {
    let (trigger, own) = (burst.last, &keyed.debounce);
    // R14: the queue's thresholds replace the process's defaults.
    let of_queue = own.from_default.then(|| known.settings(&trigger.queue).debounce).flatten();
    let thresholds = of_queue.unwrap_or(own.thresholds);
    Some([
        lane.into(),
        KEYED.into(),
        keyed.key.as_str().into(),
        trigger.payload.as_str().into(),
        exact(thresholds.min())?.into(),
        short_bound(exact(thresholds.max())?).into(),
        hash.into(),
        Item::from_count(u64::try_from(burst.members.len()).unwrap_or(u64::MAX)),
        traces_of(burst),
    ])
}

fn traces_of(burst: &Burst<'_>) -> Item {
    burst.traces.as_str().map_or(Item::NOTHING, Item::from)
}
