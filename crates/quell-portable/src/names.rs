//! What rows and places in indexes are called in a partition.
//!
//! | prefix | rows |
//! | --- | --- |
//! | `j:` | jobs, the newest first |
//! | `h:` | what hangs on a job and what names it, behind the job's own name |
//! | `u:` | rows of jobs that are set aside, as they were |
//! | `k:` `d:` `r:` `m:` | debounce, dedup and idempotency keys, and memories |
//! | `q:` `t:` `s:` `w:` `g:` | queues, tasks, starts, turns, gates |
//! | `c:` `f:` `o:` `y:` `a:` | schedules, ticks, origins, workers, alerts |
//! | `i:` | which ids are taken, which number the partition has, and the store's random name |
//! | `n:` | how many jobs there are |
//! | `x:` | places in indexes |
//! | `p:` | the partitions of the store, in the one that lists them |
//!
//! Names order as the index does. Text in them is escaped, so that it can be read back; where it is
//! long, it is a hash, and the row says whose.

use std::cmp::Reverse;
use std::fmt::Write;

use quell_core::part::TaskKey;
use quell_core::{JobId, Timestamp};
use quell_engine::{Index, Kind, Place, RowName, SettingsOf};

/// The longest text that stands in a name as it is.
const LONGEST_TEXT: usize = 60;

/// What a row is called.
pub(crate) fn of_row(name: &RowName) -> String {
    match name {
        RowName::Job(id) => format!("j:{}", descending(*id)),
        RowName::Attempts(id) => format!("h:{}:a", descending(*id)),
        RowName::Effects(id) => format!("h:{}:e", descending(*id)),
        RowName::Past(id) => format!("h:{}:p", descending(*id)),
        RowName::Aside(id) => format!("h:{}:u", descending(*id)),
        RowName::Key(key) => format!("k:{}", of_key(key)),
        RowName::Hold(key) => format!("d:{}", of_key(key)),
        RowName::Record(key) => format!("r:{}", of_key(key)),
        RowName::Memory(key) => format!("m:{}", of_key(key)),
        RowName::Queue(queue) => format!("q:{}", text(queue.as_str())),
        RowName::Task(task) => format!("t:{}", text(task.as_str())),
        RowName::Starts(queue, partition) => {
            let partition = partition.as_ref().map(|partition| text(partition.as_str()));
            format!("s:{}:{}", text(queue.as_str()), partition.unwrap_or_default())
        }
        RowName::Turn(queue) => format!("w:{}", text(queue.as_str())),
        RowName::Gate(gate) => format!("g:{gate:02x}"),
        RowName::Schedule(name) => format!("c:{}", text(name.as_str())),
        RowName::Tick(name, at) => format!("f:{}:{}", text(name.as_str()), moment(*at)),
        RowName::Origin(origin) => {
            format!("o:{:016x}:{}", origin.job.get(), moment(origin.first_at))
        }
        RowName::Worker(worker, incarnation) => {
            format!("y:{}:{incarnation:08x}", text(worker.as_str()))
        }
        RowName::Alert(name) => format!("a:{}", text(name.as_str())),
        RowName::Remarks(SettingsOf::Queue(queue)) => format!("p:q:{}", text(queue.as_str())),
        RowName::Remarks(SettingsOf::Task(task)) => format!("p:t:{}", text(task.as_str())),
        RowName::Remarks(SettingsOf::Worker(worker, incarnation)) => {
            format!("p:y:{}:{incarnation:08x}", text(worker.as_str()))
        }
    }
}

/// What the row of a job is called that is set aside.
pub(crate) fn of_raw(id: JobId) -> String {
    format!("u:{}", descending(id))
}

/// What all rows begin with that hang on a job, or name it.
pub(crate) fn hanging(id: JobId) -> String {
    format!("h:{}:", descending(id))
}

/// The job that a row is of, by the name of that row.
pub(crate) fn job_of(name: &str) -> Option<JobId> {
    let digits = name.strip_prefix("j:")?;
    u64::from_str_radix(digits, 16).ok().map(|inverted| JobId::new(!inverted))
}

/// What all names of an index begin with.
pub(crate) fn of_index(index: &Index) -> String {
    match index {
        Index::Line(queue, task) => {
            format!("x:l:{}:{}:", text(queue.as_str()), text(task.as_str()))
        }
        Index::Leases => "x:r:".to_owned(),
        Index::Waiting => "x:w:".to_owned(),
        Index::Ended => "x:e:".to_owned(),
        Index::Dead => "x:d:".to_owned(),
        Index::Unreadable => "x:u:".to_owned(),
        Index::Begun(queue) => format!("x:b:{}:", text(queue.as_str())),
        Index::Closed(key) => format!("x:c:{}:", of_key(key)),
        Index::Of(id) => format!("{}z:", hanging(*id)),
        Index::Expiry => "x:x:".to_owned(),
        Index::Plan => "x:p:".to_owned(),
        Index::Ticks => "x:t:".to_owned(),
        Index::Fired(name) => format!("x:f:{}:", text(name.as_str())),
        Index::Jobs => "j:".to_owned(),
        Index::Rows(Kind::Queues) => "q:".to_owned(),
        Index::Rows(Kind::Tasks) => "t:".to_owned(),
        Index::Rows(Kind::Starts) => "s:".to_owned(),
        Index::Rows(Kind::Workers) => "y:".to_owned(),
        Index::Rows(Kind::Alerts) => "a:".to_owned(),
        Index::Rows(Kind::Schedules) => "c:".to_owned(),
    }
}

/// Whether an index follows from the names of rows.
pub(crate) fn is_derived(index: &Index) -> bool {
    matches!(index, Index::Jobs | Index::Rows(_))
}

/// What the place of a row in an index is called.
pub(crate) fn of_entry(index: &Index, place: Place, name: &RowName) -> String {
    if is_derived(index) {
        return of_row(name);
    }
    format!("{}{}:{}", of_index(index), of_place(index, place), of_member(index, name))
}

/// Where the places of a time begin in an index, of those without a rank.
pub(crate) fn of_time(index: &Index, at: Timestamp) -> String {
    format!("{}{}", of_index(index), of_place(index, Place::at(at)))
}

fn of_place(index: &Index, place: Place) -> String {
    let (Reverse(rank), at) = (place.rank, number(place.at));
    match index {
        Index::Line(..) | Index::Begun(_) => {
            format!("{:04x}{at:016x}", i32::from(i16::MAX) - i32::from(rank))
        }
        index if index.is_descending() => format!("{:016x}", !at),
        _ => format!("{at:016x}"),
    }
}

fn of_member(index: &Index, name: &RowName) -> String {
    match name {
        RowName::Job(id) if index.is_descending() => descending(*id),
        RowName::Job(id) => format!("{:016x}", id.get()),
        name => of_row(name),
    }
}

fn descending(id: JobId) -> String {
    format!("{:016x}", !id.get())
}

/// A moment as a number that orders as moments do.
fn number(at: Timestamp) -> u64 {
    at.as_micros().cast_unsigned() ^ (1 << 63)
}

fn moment(at: Timestamp) -> String {
    format!("{:016x}", number(at))
}

/// A key of a task. The two texts are apart from each other, whatever they are.
fn of_key((task, key): &TaskKey) -> String {
    format!("{}:{}", text(task.as_str()), text(key.as_str()))
}

/// Text with all but A-Z, a-z, 0-9, `-`, `.` and `_` as `~` and the byte, or the hash of a long one.
pub(crate) fn text(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "~{byte:02x}");
        }
    }
    if escaped.len() <= LONGEST_TEXT {
        return escaped;
    }
    let hash = blake3::hash(text.as_bytes()).to_hex();
    format!("~~{}", hash.get(..40).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use quell_core::{Key, TaskName};

    use super::*;

    fn key(task: &str, key: &str) -> RowName {
        RowName::Key((TaskName::new(task).unwrap(), Key::new(key).unwrap()))
    }

    #[test]
    fn r06_r40_names_of_different_keys_never_meet() {
        let long = "k".repeat(500);
        let texts = ["a", "A", "a:b", "a~3ab", "~", "~7e", "a/b", "a\\b#?", "ä", "", " ", &long];
        let mut names = std::collections::BTreeSet::new();
        for task in ["t", "t.a", "t-a"] {
            for text in texts.iter().filter(|text| !text.is_empty()) {
                let name = of_row(&key(task, text));
                let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~:".contains(c);
                assert!(name.chars().all(is_plain) && name.len() <= 200, "{name}");
                assert!(names.insert(name), "{task} {text:?}");
            }
        }
    }

    #[test]
    fn r30_places_order_as_the_index_does() {
        let (task, queue) = (TaskName::new("t").unwrap(), quell_core::QueueName::new("q").unwrap());
        let line = Index::Line(queue, task);
        let at = |rank, secs| Place { rank: Reverse(rank), at: Timestamp::from_secs(secs) };
        let places =
            [at(i16::MAX, 5), at(7, -3), at(7, 0), at(7, 9), at(0, 1), at(-7, 0), at(i16::MIN, 0)];
        let names: Vec<String> = places
            .iter()
            .flat_map(|place| [1, 2, 300].map(|id| (place, id)))
            .map(|(place, id)| of_entry(&line, *place, &RowName::Job(JobId::new(id))))
            .collect();
        assert!(names.is_sorted(), "{names:#?}");
        let dead = [(9, 2), (9, 1), (3, 7)]
            .map(|(secs, id)| of_entry(&Index::Dead, at(0, secs), &RowName::Job(JobId::new(id))));
        assert!(dead.is_sorted(), "{dead:#?}");
    }

    #[test]
    fn a_job_is_found_by_the_name_of_its_row() {
        for id in [1, 17, u64::MAX].map(JobId::new) {
            assert_eq!(job_of(&of_row(&RowName::Job(id))), Some(id));
        }
    }
}
