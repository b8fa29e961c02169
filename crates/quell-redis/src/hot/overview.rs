//! What alerts look at (R27), read by scripts of a bounded size, however many jobs have died, and
//! however many queues, partitions and lanes there are.
//!
//! Jobs are counted as they come and go, so dead ones cost nothing here. The counts also say which
//! tasks have jobs that wait, and the heads of a queue are read only until each of those was met.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::alert::{LaneOverview, Overview};
use quell_core::{Counts, Job, JobId, JobState, QueueName, Result, TaskName, Timestamp};

use tracing::warn;

use crate::backend::RedisBackend;
use crate::backend::fitting;
use crate::known::Known;
use crate::listing::CHUNK;
use crate::look::{Read, Score, job_of, read_fields};
use crate::open::VERSION;
use crate::portions::{Order, Walk};
use crate::row::decode_job;
use crate::shard::Time;

/// Windows that wait for an attempt of their key or for an older window: an overview sees the
/// earliest, as far as their rows are not too long to be read.
const MOST_WAITING: usize = 1_000;
/// Lines that one script reads at most.
const LINES: usize = 1_000;
/// Lines of each queue that are read first: most have one task, and thus are done with the first.
const FIRST_LINES: usize = 10;
/// What a script is called in errors.
const LOOK: &str = "look at all queues";

/// What is known so far, by queue and task.
#[derive(Default)]
struct Lanes(BTreeMap<(QueueName, TaskName), LaneOverview>);

/// The lines of one queue, and the tasks whose first line has not been found yet.
struct Lines {
    queue: QueueName,
    tasks: BTreeSet<TaskName>,
    walk: Walk,
}

impl Lanes {
    fn lane(&mut self, queue: &QueueName, task: &TaskName) -> &mut LaneOverview {
        let empty = || {
            let (queue, task) = (queue.clone(), task.clone());
            LaneOverview { queue, task, dead: 0, unreadable: 0, first_due: None }
        };
        self.0.entry((queue.clone(), task.clone())).or_insert_with(empty)
    }

    fn note_due(&mut self, queue: &QueueName, task: &TaskName, due: Timestamp) {
        let first = &mut self.lane(queue, task).first_due;
        *first = Some(first.map_or(due, |first| first.min(due)));
    }
}

impl RedisBackend {
    pub(crate) async fn read_overview(&self, time: Time) -> Result<Overview> {
        let tally = self.shard.counts().await?.into_iter();
        let counts = tally.map(|((queue, task, state), jobs)| {
            let jobs = u64::try_from(jobs).unwrap_or(0);
            Counts { queue, task, state, jobs }
        });
        let counts: Vec<Counts> = counts.collect();
        let keys = &self.shard.keys;
        let reads = [
            Read::Fields(keys.meta(), vec![VERSION.to_owned()]),
            Read::lowest(keys.waiting(), MOST_WAITING),
            Read::Count(keys.unreadable_jobs()),
        ];
        let mut looked = self.shard.look(LOOK, time, &reads).await?;
        let version = looked.text()?;
        let (waiting, unreadable) = (looked.scored()?, looked.number()?);
        let mut known = self.shard.known();
        if known.version != version {
            known = self.shard.learn().await?;
        }
        let mut lanes = Lanes::default();
        for counts in counts.iter().filter(|counts| counts.jobs > 0) {
            match counts.state {
                JobState::Dead => lanes.lane(&counts.queue, &counts.task).dead = counts.jobs,
                JobState::Unreadable => {
                    lanes.lane(&counts.queue, &counts.task).unreadable = counts.jobs;
                }
                _ => {}
            }
        }
        self.note_heads(&known, &counts, &mut lanes).await?;
        let ids: Result<Vec<JobId>> = waiting.iter().map(|(member, _)| job_of(member)).collect();
        let ids = self.first_rows(ids?).await?;
        for ids in ids.chunks(CHUNK) {
            for job in self.read_jobs(&known, ids).await?.iter().filter(|job| job.waits) {
                lanes.note_due(&job.queue, &job.task, job.window.due_at);
            }
        }
        Ok(Overview { now: looked.now, lanes: lanes.0.into_values().collect(), unreadable })
    }

    /// Notes when the first job in line is due, of each task in each queue.
    async fn note_heads(&self, known: &Known, counts: &[Counts], lanes: &mut Lanes) -> Result<()> {
        let mut scheduled: BTreeMap<&QueueName, BTreeSet<TaskName>> = BTreeMap::new();
        for counts in counts.iter().filter(|counts| counts.state == JobState::Scheduled) {
            scheduled.entry(&counts.queue).or_default().insert(counts.task.clone());
        }
        let lines = |(queue, tasks): (&QueueName, BTreeSet<TaskName>)| {
            let walk = Walk::new(self.shard.keys.heads(queue), Order::Lowest, Score::Min);
            Lines { queue: queue.clone(), tasks, walk }
        };
        let mut left: Vec<Lines> = scheduled.into_iter().map(lines).collect();
        let mut of_each = FIRST_LINES;
        while !left.is_empty() {
            let mut queues = std::mem::take(&mut left).into_iter().peekable();
            while queues.peek().is_some() {
                let mut some: Vec<Lines> = queues.by_ref().take(LINES / of_each).collect();
                let reads: Vec<Read> = some.iter().map(|lines| lines.walk.read(of_each)).collect();
                let mut looked = self.shard.look(LOOK, Time::Last, &reads).await?;
                for lines in &mut some {
                    for (line, due) in lines.walk.take(looked.scored()?, of_each) {
                        let lane = line.split(' ').next().and_then(|lane| lane.parse().ok());
                        let Some(lane) = lane.and_then(|lane| known.lane(lane)) else { continue };
                        if lines.tasks.remove(&lane.task) {
                            lanes.note_due(&lines.queue, &lane.task, due);
                        }
                    }
                }
                left.extend(some.into_iter().filter(|lines| !lines.is_done()));
            }
            of_each = LINES;
        }
        Ok(())
    }

    /// The rows of jobs, of those that are there and can be decoded: one that cannot must not hide the
    /// others.
    async fn read_jobs(&self, known: &Known, ids: &[JobId]) -> Result<Vec<Job>> {
        let fields: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let reads = read_fields(&self.shard.keys.jobs(), &fields);
        let rows = self.shard.look(LOOK, Time::Last, &reads).await?.fields()?;
        let decode = |(id, row): (&JobId, Option<Vec<u8>>)| {
            let job = decode_job(*id, &row?, known);
            job.inspect_err(|error| warn!(%error, "row left out")).ok()
        };
        Ok(ids.iter().zip(rows).filter_map(decode).collect())
    }

    /// The first of these jobs, as many as have rows within the bound of bytes of a call.
    async fn first_rows(&self, mut ids: Vec<JobId>) -> Result<Vec<JobId>> {
        if ids.is_empty() {
            return Ok(ids);
        }
        let fields = ids.iter().map(ToString::to_string).collect();
        let reads = [Read::Lengths(self.shard.keys.jobs(), fields)];
        let mut looked = self.shard.look(LOOK, Time::Last, &reads).await?;
        ids.truncate(fitting(looked.numbers()?));
        Ok(ids)
    }
}

impl Lines {
    fn is_done(&self) -> bool {
        self.tasks.is_empty() || self.walk.is_over()
    }
}
