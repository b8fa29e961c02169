//! Places in the indexes that a strict order of partitions reads (R41).

use quell_core::{QueueName, Result};
use quell_engine::{Entry, Scan};
use sqlx::SqliteConnection;

use crate::names::Names;
use crate::scan::{jobs_by, of_lanes};

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
    of_lanes(db, scan, &names.lanes_of(queue, None), [&[BEGUN]; 2]).await
}
