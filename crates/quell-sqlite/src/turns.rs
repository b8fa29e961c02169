//! Places in the indexes that a strict order of partitions reads (R41).

use std::cmp::Reverse;

use quell_core::{JobState, QueueName, Result};
use quell_engine::{Entry, Note, Scan};
use sqlx::SqliteConnection;

use crate::names::{Lane, Names};
use crate::scan::{Range, entry, fetch, jobs_by, partition};

/// The first job of each partition of a lane, by when it is due.
pub(crate) const HEADS: &str = "select head_id, head_at, name from quell_partition
      where lane_id = ?6 and head_at is not null and head_at >= ?3 and head_at <= ?4
        and (head_at, head_id) > (?1, ?2)
      order by head_at, head_id limit ?5 + 0";

/// Jobs of partitions of a queue that have started before, by priority and by when they are due.
pub(crate) async fn begun(
    db: &mut SqliteConnection,
    names: &Names,
    scan: &Scan,
    queue: &QueueName,
) -> Result<Vec<Entry>> {
    const BEGUN: &str = jobs_by!(
        "j.partition",
        "due_at",
        "j.lane_id >> 32 = ?6 and j.state = 0 and j.waits = 0 and j.token <> 0
            and j.partition is not null"
    );
    let (mut entries, wanted) = (Vec::new(), scan.limit.saturating_add(1));
    let lanes = names.lanes_of_queue(queue);
    for of_priority in lanes.chunk_by(|one, other| one.priority == other.priority) {
        let Some(rank) = of_priority.first().map(|lane| Reverse(lane.priority)) else { continue };
        let after = scan.after.as_ref().filter(|(place, _)| place.rank >= rank);
        if after.is_some_and(|(place, _)| place.rank > rank) {
            continue;
        }
        let of_rank = Scan { after: after.cloned(), ..scan.clone() };
        let range = Range::of(&of_rank);
        let mut found = Vec::new();
        for lane in of_priority {
            let Lane { queue, task, .. } = lane;
            for row in fetch(db, range.ascending(sqlx::query(BEGUN)).bind(lane.id)).await? {
                let note = Note {
                    queue: queue.clone(),
                    task: task.clone(),
                    state: JobState::Scheduled,
                    partition: partition(&row, 2),
                    worker: None,
                };
                found.extend(entry(&row, Some(note))?);
            }
        }
        found.iter_mut().for_each(|entry| entry.place.rank = rank);
        found.sort_unstable();
        entries.extend(found);
        if entries.len() >= wanted {
            break;
        }
    }
    entries.truncate(wanted);
    Ok(entries)
}
