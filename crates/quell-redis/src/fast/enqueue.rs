//! Accepting triggers by one script (R6, R7, R9).
//!
//! Batches of other kinds, and those whose window has a history that asks for more, take the step
//! that knows all cases.

use std::collections::{BTreeMap, HashMap};

use quell_core::part::Notifications;
use quell_core::trigger::Keyed;
use quell_core::{Batch, JobId, Key, NewTrigger, Receipt, Result, Timestamp, TriggerId, When};

use super::plan::{Burst, Gathered, lane_of, parts};
use super::{Answer, Request, exact};
use crate::known::Known;
use crate::pack::{Item, list};
use crate::row::{corrupt, short_bound};
use crate::shard::Shard;
use crate::store::ShardStore;
use crate::tx::Numbered;
use crate::write::lane_member;

/// The answer to each batch of a call, once it is there.
type Answers = Vec<Option<Result<Vec<Receipt>>>>;

/// What an item of a script is.
const PLAIN: i64 = 0;
const AT: i64 = 1;
const KEYED: i64 = 2;

impl ShardStore {
    /// Accepts batches, each whole or not at all; receipts come in the same order.
    pub(crate) async fn accept_each(
        &self,
        now: Option<Timestamp>,
        batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let parts = parts(&self.shard.known(), &batches);
        if self.history.is_some() || parts.iter().all(|part| !part.is_common) {
            return self.accept_by_step(now, &batches).await;
        }
        let mut answers: Answers = batches.iter().map(|_| None).collect();
        for part in parts {
            let taken = if part.is_common {
                self.gather(now, &batches, &part.batches, &mut answers).await
            } else {
                self.accept_left(now, &batches, &part.batches, &mut answers).await
            };
            if let Err(error) = taken {
                // What was taken before stays, and its callers are told so.
                if answers.iter().all(Option::is_none) {
                    return Err(error);
                }
                let answer = |answer: Option<_>| answer.unwrap_or_else(|| Err(error.share()));
                return Ok(answers.into_iter().map(answer).collect());
            }
        }
        let lost = || Err(corrupt("an answer to a batch is missing"));
        Ok(answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect())
    }

    /// The step that knows all cases, for some batches of a call.
    async fn accept_left(
        &self,
        now: Option<Timestamp>,
        batches: &[Batch],
        left: &[usize],
        answers: &mut Answers,
    ) -> Result<()> {
        let picked: Vec<Batch> =
            left.iter().filter_map(|place| batches.get(*place)).cloned().collect();
        let answered = self.accept_by_step(now, &picked).await?;
        for (place, answer) in left.iter().zip(answered) {
            put(answers, *place, answer);
        }
        Ok(())
    }

    /// Takes what it can of these batches by scripts, in their order, and the rest by steps.
    async fn gather(
        &self,
        now: Option<Timestamp>,
        batches: &[Batch],
        mut places: &[usize],
        answers: &mut Answers,
    ) -> Result<()> {
        while let Some(first) = places.first() {
            let gathered = Gathered::of(batches, places);
            let (taken, later) = places.split_at_checked(gathered.batches).unwrap_or_default();
            if taken.is_empty() {
                self.accept_left(now, batches, &[*first], answers).await?;
                places = places.get(1..).unwrap_or_default();
                continue;
            }
            places = later;
            let mut receipts: BTreeMap<usize, Vec<Option<Receipt>>> = BTreeMap::new();
            for place in taken {
                let count = batches.get(*place).map_or(0, |batch| batch.triggers.len());
                receipts.insert(*place, vec![None; count]);
            }
            self.run_gathered(now, &gathered, &mut receipts).await?;
            let mut left = Vec::new();
            for (place, receipts) in receipts {
                match receipts.into_iter().collect::<Option<Vec<Receipt>>>() {
                    Some(receipts) => put(answers, place, Ok(receipts)),
                    None => left.push(place),
                }
            }
            if !left.is_empty() {
                self.accept_left(now, batches, &left, answers).await?;
            }
        }
        Ok(())
    }

    async fn run_gathered(
        &self,
        now: Option<Timestamp>,
        gathered: &Gathered<'_>,
        receipts: &mut BTreeMap<usize, Vec<Option<Receipt>>>,
    ) -> Result<()> {
        if gathered.bursts.is_empty() {
            return Ok(());
        }
        let shard = &self.shard;
        let request = |known: &Known| request(shard, known, gathered);
        let script = &shard.scripts.fast.enqueue;
        let _shared = shard.accepting.read().await;
        let answer = shard.run("accept triggers", script, now.into(), request).await?;
        let Some(mut answer) = answer else { return Ok(()) };
        for burst in &gathered.bursts {
            let taken = Taken::read(&mut answer)?;
            let Some(taken) = taken else { continue };
            for ((batch, own), receipt) in burst.members.iter().zip(taken.receipts(burst)) {
                let place = receipts.get_mut(batch).and_then(|of_batch| of_batch.get_mut(*own));
                if let Some(place) = place {
                    *place = Some(receipt);
                }
            }
        }
        self.spread(Notifications { wakes: answer.wakes()?, ..Notifications::default() });
        shard.steps.spared();
        Ok(())
    }
}

fn put(answers: &mut Answers, place: usize, answer: Result<Vec<Receipt>>) {
    if let Some(place) = answers.get_mut(place) {
        *place = Some(answer);
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

    /// The receipts of the last triggers of its window, of which the first may have opened it.
    fn receipts(&self, burst: &Burst<'_>) -> impl Iterator<Item = Receipt> {
        let Taken { job, due, triggers, is_new } = *self;
        let count = u64::try_from(burst.members.len()).unwrap_or(u64::MAX);
        let before = triggers.saturating_sub(count);
        (before.saturating_add(1)..=triggers).map(move |seq| {
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

fn request(shard: &Shard, known: &Known, gathered: &Gathered<'_>) -> Result<Option<Request>> {
    let own = &shard.keys;
    let mut keys = shard.first_keys([own.seq(), own.counts(), own.runs(), own.waiting()]);
    let mut lanes = Lanes::default();
    let mut items = Vec::new();
    for burst in &gathered.bursts {
        let Some(lane) = lanes.place(shard, known, &mut keys, burst.last) else { return Ok(None) };
        let is_exact = match &burst.last.keyed {
            None => plain_item(lane, burst.last).map(|item| items.extend(item)),
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
        if gathered.is_whole { Item::from(1_i64) } else { Item::NOTHING },
        Item::List(lanes.items),
        Item::List(items),
    ];
    Ok(Some(Request { keys, asked }))
}

/// None where its delay is longer than scripts can reckon with.
fn plain_item(lane: usize, trigger: &NewTrigger) -> Option<[Item; 4]> {
    let (kind, asked) = match trigger.when {
        When::Now => (PLAIN, Item::NOTHING),
        When::After(delay) => (PLAIN, exact(delay)?.into()),
        When::At(at) => (AT, at.as_micros().into()),
    };
    Some([lane.into(), kind.into(), trigger.payload.as_str().into(), asked])
}

/// None where its thresholds are longer than scripts can reckon with.
fn keyed_item(
    (lane, hash): (usize, usize),
    known: &Known,
    burst: &Burst<'_>,
    keyed: &Keyed,
) -> Option<[Item; 8]> {
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
    ])
}
