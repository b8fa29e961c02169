//! The writes of a step, in order, and how `lua/commit.lua` reads them.

use std::collections::BTreeSet;
use std::fmt::Display;

use quell_core::Timestamp;
use quell_core::part::Notifications;
use quell_core::schedule::Tick;

use crate::open::Numbered;
use crate::pack::{Item, list};
use crate::shard::Shard;

/// Stands for every queue in a hint; no name has it.
pub(crate) const ANY: &str = "*";

/// Stands in the place of a time where a hint is of the end of a job.
pub(crate) const ENDED: &str = "ended";
/// Begins a hint that a running job was cancelled.
pub(crate) const CANCELLED: &str = "cancelled";

/// Something to write.
#[derive(Debug)]
pub(crate) enum Write {
    HashSet {
        key: String,
        field: String,
        value: Vec<u8>,
    },
    HashDelete {
        key: String,
        field: String,
    },
    HashAdd {
        key: String,
        field: String,
        by: i64,
    },
    Place {
        key: String,
        member: String,
        score: Timestamp,
    },
    Unplace {
        key: String,
        member: String,
    },
    /// The head of a line has changed.
    Head {
        heads: String,
        line: String,
        lane: String,
    },
    /// What keeps a new window of a key back: these running jobs, and the first of the set `closed`.
    Busy {
        key: String,
        closed: String,
        field: String,
        running: String,
    },
    Include {
        key: String,
        member: String,
    },
    Exclude {
        key: String,
        member: String,
    },
    Push {
        key: String,
        value: String,
        most: u64,
    },
    Set {
        key: String,
        value: String,
    },
    Expire {
        key: String,
        seconds: i64,
    },
    Persist {
        key: String,
    },
    Delete {
        key: String,
    },
    /// Ticks of a schedule, of whose record this is the id, are among the triggers of a job.
    Show {
        key: String,
        schedule: String,
        id: String,
        ticks: Vec<String>,
    },
    Publish {
        channel: String,
        hint: String,
    },
    /// A job has ended, for which someone may wait.
    Ended {
        key: String,
        job: String,
        channel: String,
        hint: String,
    },
}

/// Writes, in order.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    writes: Vec<Write>,
    /// Lines whose head may have changed, with their queues' heads.
    pub(crate) lines: BTreeSet<(String, String, String)>,
}

impl Writes {
    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub(crate) fn push(&mut self, write: Write) {
        self.writes.push(write);
    }

    pub(crate) fn set(&mut self, key: String, value: String) {
        self.writes.push(Write::Set { key, value });
    }

    pub(crate) fn hash_set(&mut self, key: String, field: impl Display, value: Vec<u8>) {
        self.writes.push(Write::HashSet { key, field: field.to_string(), value });
    }

    pub(crate) fn hash_delete(&mut self, key: String, field: impl Display) {
        self.writes.push(Write::HashDelete { key, field: field.to_string() });
    }

    pub(crate) fn hash_add(&mut self, key: String, field: String, by: i64) {
        self.writes.push(Write::HashAdd { key, field, by });
    }

    pub(crate) fn place(&mut self, key: String, member: String, score: Timestamp) {
        self.writes.push(Write::Place { key, member, score });
    }

    pub(crate) fn unplace(&mut self, key: String, member: String) {
        self.writes.push(Write::Unplace { key, member });
    }

    pub(crate) fn include(&mut self, key: String, member: String) {
        self.writes.push(Write::Include { key, member });
    }

    pub(crate) fn exclude(&mut self, key: String, member: String) {
        self.writes.push(Write::Exclude { key, member });
    }

    /// The head of a line may have changed.
    pub(crate) fn head(&mut self, heads: String, line: String, lane: String) {
        self.writes.push(Write::Head { heads, line, lane });
    }

    pub(crate) fn delete(&mut self, key: String) {
        self.writes.push(Write::Delete { key });
    }

    /// Hints to other processes, which go out with the step.
    pub(crate) fn publish(&mut self, shard: &Shard, news: &Notifications) {
        let queues = news.wakes.iter().map(|(queue, due)| (queue.as_str(), *due));
        for (queue, due) in queues.chain(news.next_tick.map(|due| (ANY, due))) {
            let hint = format!("{} {} {queue}", shard.origin, due.as_micros());
            self.writes.push(Write::Publish { channel: shard.channel.clone(), hint });
        }
        for job in &news.cancelled {
            let hint = format!("{} {CANCELLED} {job}", shard.origin);
            self.writes.push(Write::Publish { channel: shard.channel.clone(), hint });
        }
        for job in &news.ended {
            self.writes.push(Write::Ended {
                key: shard.keys.awaited(),
                job: job.to_string(),
                channel: shard.channel.clone(),
                hint: format!("{} {ENDED} {job}", shard.origin),
            });
        }
    }

    /// As the script reads them.
    pub(crate) fn into_items(self, keys: &mut Numbered) -> Vec<Item> {
        let item = |write| match write {
            Write::HashSet { key, field, value } => list!["hset", keys.number(key), field, value],
            Write::HashDelete { key, field } => list!["hdel", keys.number(key), field],
            Write::HashAdd { key, field, by } => list!["hincr", keys.number(key), field, by],
            Write::Place { key, member, score } => {
                list!["zadd", keys.number(key), member, score.as_micros()]
            }
            Write::Unplace { key, member } => list!["zrem", keys.number(key), member],
            Write::Head { heads, line, lane } => {
                list!["head", keys.number(heads), keys.number(line), lane]
            }
            Write::Busy { key, closed, field, running } => {
                list!["busy", keys.number(key), keys.number(closed), field, running]
            }
            Write::Include { key, member } => list!["sadd", keys.number(key), member],
            Write::Exclude { key, member } => list!["srem", keys.number(key), member],
            Write::Push { key, value, most } => {
                list!["push", keys.number(key), value, usize::try_from(most).unwrap_or(0)]
            }
            Write::Set { key, value } => list!["set", keys.number(key), value],
            Write::Expire { key, seconds } => list!["expire", keys.number(key), seconds],
            Write::Persist { key } => list!["persist", keys.number(key)],
            Write::Delete { key } => list!["del", keys.number(key)],
            Write::Show { key, schedule, id, ticks } => {
                let ticks = Item::List(ticks.into_iter().map(Item::from).collect());
                list!["show", keys.number(key), schedule, id, Tick::SHOWN, ticks]
            }
            Write::Ended { key, job, channel, hint } => {
                list!["ended", keys.number(key), job, channel, hint]
            }
            Write::Publish { channel, hint } => list!["publish", 1_usize, channel, hint],
        };
        self.writes.into_iter().map(item).collect()
    }
}
