//! Ending attempts that succeeded, by one script.
//!
//! What ended otherwise, or was given to another process, takes the step that knows all cases.

use std::collections::BTreeSet;

use quell_core::history::Event;
use quell_core::part::Notifications;
use quell_core::{
    JobId, Key, Lease, LeaseToken, Now, Outcome, Payload, Result, Settled, SettledAs, Settlement,
    Timestamp,
};

use quell_engine::Taken;

use super::held::HeldJob;
use super::{Request, add_wakes};
use crate::backend::RedisBackend;
use crate::commit::lane_member;
use crate::known::Known;
use crate::pack::{Item, list};
use crate::shard::Shard;

/// Ends that one script takes.
const MOST_ENDS: usize = 1_000;
/// Lanes that one script receives because windows may be in them.
const MOST_LANES: usize = 64;

/// The end of an attempt of a job that this process was given.
#[derive(Debug)]
struct End<'s> {
    lease: Lease,
    output: Option<&'s Payload>,
    job: HeldJob,
}

impl RedisBackend {
    /// Ends those attempts that a script may end, of the first that one takes; the others have no answer.
    /// None where there are none of those.
    pub(crate) async fn settle_some(
        &self,
        now: Now,
        settlements: &[Settlement],
    ) -> Taken<Vec<Option<Settled>>> {
        let mut ends = self.common_ends(settlements);
        let looked_at = settlements.len().min(MOST_ENDS);
        ends.retain(|(place, _)| *place < looked_at);
        let mut settled = vec![None; looked_at];
        let mut news = Notifications::default();
        if !ends.is_empty() {
            self.settle_ends(now, settlements, &ends, (&mut settled, &mut news)).await?;
        }
        self.shard.held.forget(settlements.iter().take(looked_at).map(|one| one.lease.job));
        Ok(settled.iter().any(Option::is_some).then_some((settled, news)))
    }

    /// The ends that the script may know, with their places in the call.
    fn common_ends<'s>(&self, settlements: &'s [Settlement]) -> Vec<(usize, End<'s>)> {
        // Of one job, all ends take the same way, in their order.
        let others = settlements.iter().filter(|one| !one.outcome.is_success());
        let others: BTreeSet<JobId> = others.map(|one| one.lease.job).collect();
        let common = |(place, settlement): (usize, &'s Settlement)| {
            let Settlement { lease, outcome: Outcome::Succeeded { output } } = settlement else {
                return None;
            };
            let job = self.shard.held.get(lease).filter(|_| !others.contains(&lease.job))?;
            Some((place, End { lease: *lease, output: output.as_ref(), job }))
        };
        settlements.iter().enumerate().filter_map(common).collect()
    }

    async fn settle_ends(
        &self,
        now: Now,
        settlements: &[Settlement],
        ends: &[(usize, End<'_>)],
        (settled, news): (&mut [Option<Settled>], &mut Notifications),
    ) -> Result<()> {
        let shard = &self.shard;
        let script = &shard.scripts.hot.settle;
        let request = |known: &Known| Ok(request(shard, known, ends));
        let answer = shard.run("end attempts", script, now.into(), request).await?;
        let Some(mut answer) = answer else { return Ok(()) };
        for (place, end) in ends {
            let became = match answer.count()? {
                0 => SettledAs::Refused,
                1 => SettledAs::Succeeded,
                _ => continue,
            };
            if became == SettledAs::Succeeded {
                news.ended.push(end.lease.job);
            }
            let settlement = settlements.get(*place).into_iter();
            let event = |settlement| Event::settled(answer.at, settlement, became);
            news.events.extend(self.events(settlement.map(event)));
            if let Some(place) = settled.get_mut(*place) {
                *place = Some(Settled { lease: end.lease, became });
            }
        }
        add_wakes(news, answer.wakes()?);
        Ok(())
    }
}

fn request(shard: &Shard, known: &Known, ends: &[(usize, End<'_>)]) -> Option<Request> {
    let keys = &shard.keys;
    let mut numbered = shard.first_keys([
        keys.leases(),
        keys.ended(),
        keys.counts(),
        keys.slots(),
        keys.runs(),
        keys.waiting(),
        keys.awaited(),
    ]);
    let mut tasks = BTreeSet::new();
    let mut groups = Groups::default();
    let mut items = Vec::new();
    for (_, End { lease, output, job }) in ends {
        let group = groups.number(known, lease, job);
        let (key, hash) = match &job.key {
            Some(key) => {
                tasks.insert(&job.task);
                let hash = numbered.number(keys.debounce(&job.task, key));
                (Item::from(key.as_str()), Item::from(hash))
            }
            None => (Item::NOTHING, Item::NOTHING),
        };
        let partition = job.first_run.as_ref().and_then(|first| first.partition.as_ref());
        let or_nothing = |text: Option<&str>| text.map_or(Item::NOTHING, Item::from);
        items.extend([
            Item::from(lease.job.to_string()),
            Item::from(group),
            or_nothing(output.map(Payload::as_str)),
            or_nothing(partition.map(Key::as_str)),
            key,
            hash,
        ]);
    }
    let lanes = known.lanes().filter(|(_, lane)| tasks.contains(&lane.task));
    let lanes: Vec<Item> = lanes
        .map(|(number, lane)| {
            let name = lane_member(number, None);
            let heads = numbered.number(keys.heads(&lane.queue));
            let line = numbered.number(keys.line(&name));
            list![i64::from(number), heads, line, name, lane.queue.as_str()]
        })
        .collect();
    if lanes.len() > MOST_LANES {
        return None;
    }
    let asked = vec![
        Item::from(shard.channel.clone()),
        Item::from(shard.origin.clone()),
        Item::List(lanes),
        Item::List(groups.items),
        Item::List(items),
    ];
    Some(Request { keys: numbered, asked })
}

/// What ends have in common.
#[derive(Debug, Default)]
struct Groups<'e> {
    items: Vec<Item>,
    /// The last one: ends mostly come as their jobs were started.
    last: Option<(&'e HeldJob, LeaseToken)>,
}

impl<'e> Groups<'e> {
    /// The number of the group that the end of a job is of.
    fn number(&mut self, known: &Known, lease: &Lease, job: &'e HeldJob) -> usize {
        let is_same = self.last.is_some_and(|(last, token)| {
            token == lease.token
                && last.queue == job.queue
                && last.task == job.task
                && last.worker == job.worker
                && last.first_run.as_ref().map(|first| (first.started, first.until))
                    == job.first_run.as_ref().map(|first| (first.started, first.until))
        });
        if !is_same {
            self.last = Some((job, lease.token));
            let HeldJob { queue, task, worker, first_run, .. } = job;
            let first_run = first_run.as_ref().filter(|first| first.token == lease.token);
            let moment = |at: Timestamp| Item::from(at.as_micros());
            let (since, until) = first_run.map_or((Item::NOTHING, Item::NOTHING), |first| {
                (moment(first.started), moment(first.until))
            });
            self.items.push(list![
                queue.as_str(),
                task.as_str(),
                worker.as_str(),
                Item::from_count(lease.token.starts()),
                Item::from_count(lease.token.draw().get()),
                // Jobs that limits kept in the queue may start, at any worker.
                known.settings(queue).limits_concurrency(),
                since,
                until,
            ]);
        }
        self.items.len()
    }
}
