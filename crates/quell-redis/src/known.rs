//! What a process knows of a shard's names and settings: lanes, shapes, queues and tasks.
//!
//! They change seldom, so that each call need not read them; their version is checked by each write
//! and comes with each look.

use std::collections::{BTreeMap, HashMap};

use quell_core::job::Shape;
use quell_core::{Job, QueueName, QueueSettings, Result, TaskName, TaskSettings};

use tracing::{error, warn};

use crate::row::{DEFAULT_SHAPE, corrupt, from_json, policy_of, shape_name};

/// Jobs that wait in one order: of a queue, a task and a priority.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    pub(crate) queue: QueueName,
    pub(crate) task: TaskName,
    pub(crate) priority: i16,
}

impl Lane {
    /// The lane of a job.
    pub(crate) fn of(job: &Job) -> Self {
        Lane { queue: job.queue.clone(), task: job.task.clone(), priority: job.priority }
    }

    /// The field under which its number is kept.
    pub(crate) fn name(&self) -> String {
        format!("{} {} {}", self.queue, self.task, self.priority)
    }

    fn parse(name: &str) -> Option<Self> {
        let mut words = name.split(' ');
        Some(Lane {
            queue: QueueName::new(words.next()?).ok()?,
            task: TaskName::new(words.next()?).ok()?,
            priority: words.next()?.parse().ok()?,
        })
    }
}

/// Names and settings, as of one version of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// None before anything was ever written.
    pub(crate) version: Option<Vec<u8>>,
    pub(crate) queues: BTreeMap<QueueName, Option<QueueSettings>>,
    pub(crate) tasks: BTreeMap<TaskName, TaskSettings>,
    lanes: HashMap<u32, Lane>,
    numbers: HashMap<Lane, u32>,
    shapes: HashMap<u32, Shape>,
    shape_numbers: HashMap<String, u32>,
    /// The highest number of a shape, also of one that cannot be decoded.
    newest_shape: u32,
}

/// Pairs of a hash.
pub(crate) type Pairs = Vec<(String, Vec<u8>)>;

impl Known {
    pub(crate) fn read(
        version: Option<Vec<u8>>,
        [lanes, shapes, queues, tasks]: [Pairs; 4],
    ) -> Result<Self> {
        let mut known = Known { version, ..Known::default() };
        for (name, number) in lanes {
            let lane = Lane::parse(&name).ok_or_else(|| corrupt(format_args!("lane {name:?}")))?;
            known.add_lane(lane, parse_number(&number)?);
        }
        for (name, number) in shapes {
            let number = parse_number(&number)?;
            known.newest_shape = known.newest_shape.max(number);
            // R25: a shape of a newer process harms the jobs that have it, and no other.
            match from_json("a shape", name.as_bytes()) {
                Ok(shape) => known.add_shape(name, shape, number),
                Err(error) => warn!(%error, shape = number, "shape cannot be decoded"),
            }
        }
        for (name, settings) in queues {
            // R25, R32: settings that cannot be decoded hold their own queue back, as deleted ones do.
            let decoded = from_json("settings of a queue", &settings);
            let decoded = decoded.inspect_err(|error| {
                if !settings.is_empty() {
                    error!(%error, queue = name, "settings cannot be decoded: the queue is held");
                }
            });
            known.queues.insert(QueueName::new(name)?, decoded.ok());
        }
        for (name, settings) in tasks {
            let settings = from_json("settings of a task", &settings).unwrap_or_else(|error| {
                error!(%error, task = name, "settings cannot be decoded: the task is held");
                TaskSettings::default().paused(true)
            });
            known.tasks.insert(TaskName::new(name)?, settings);
        }
        Ok(known)
    }

    pub(crate) fn lane(&self, number: u32) -> Option<&Lane> {
        self.lanes.get(&number)
    }

    pub(crate) fn lane_number(&self, lane: &Lane) -> Option<u32> {
        self.numbers.get(lane).copied()
    }

    /// Every lane with its number.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (u32, &Lane)> {
        self.lanes.iter().map(|(number, lane)| (*number, lane))
    }

    /// Whether a lane is of the queue and a task of these (R28) that is not paused (R33).
    pub(crate) fn is_offered(&self, lane: &Lane, queue: &QueueName, tasks: &[TaskName]) -> bool {
        let paused = self.tasks.get(&lane.task).is_some_and(|settings| settings.paused);
        lane.queue == *queue && !paused && tasks.contains(&lane.task)
    }

    /// Whether a rate counts what starts in the queue (R31).
    pub(crate) fn limits_rate(&self, queue: &QueueName) -> bool {
        let settings = self.queues.get(queue).and_then(Option::as_ref);
        settings.is_some_and(QueueSettings::limits_rate)
    }

    /// Gives a new lane the next number.
    pub(crate) fn new_lane(&mut self, lane: Lane) -> u32 {
        let number = next(self.lanes.len());
        self.add_lane(lane, number);
        number
    }

    fn add_lane(&mut self, lane: Lane, number: u32) {
        self.numbers.insert(lane.clone(), number);
        self.lanes.insert(number, lane);
    }

    pub(crate) fn shape(&self, number: u32) -> Option<Shape> {
        if number == DEFAULT_SHAPE {
            return Some(Shape::default());
        }
        self.shapes.get(&number).cloned()
    }

    /// Every shape that has a number of its own.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = (u32, &Shape)> {
        self.shapes.iter().map(|(number, shape)| (*number, shape))
    }

    /// The number of what jobs share of a shape; none where it has none yet.
    pub(crate) fn shape_number(&self, shape: &Shape) -> Result<Option<u32>> {
        let policy = policy_of(shape);
        if *policy == Shape::default() {
            return Ok(Some(DEFAULT_SHAPE));
        }
        Ok(self.shape_numbers.get(&shape_name(&policy)?).copied())
    }

    /// Gives a new shape the next number; returns it with the shape's name.
    pub(crate) fn new_shape(&mut self, shape: &Shape) -> Result<(String, u32)> {
        let policy = policy_of(shape).into_owned();
        let (name, number) = (shape_name(&policy)?, self.newest_shape.saturating_add(1));
        self.add_shape(name.clone(), policy, number);
        Ok((name, number))
    }

    fn add_shape(&mut self, name: String, shape: Shape, number: u32) {
        self.newest_shape = self.newest_shape.max(number);
        self.shape_numbers.insert(name, number);
        self.shapes.insert(number, shape);
    }

    /// A queue that was deleted has no settings, and hands out nothing (R32).
    pub(crate) fn settings(&self, queue: &QueueName) -> QueueSettings {
        match self.queues.get(queue) {
            Some(Some(settings)) => settings.clone(),
            Some(None) => QueueSettings { paused: true, ..QueueSettings::default() },
            None => QueueSettings::default(),
        }
    }
}

/// Numbers count from 1: nothing is ever removed.
fn next(known: usize) -> u32 {
    u32::try_from(known).unwrap_or(u32::MAX).saturating_add(1)
}

fn parse_number(bytes: &[u8]) -> Result<u32> {
    let number = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| corrupt(format_args!("the number {:?}", String::from_utf8_lossy(bytes))))
}
