//! R4 and R22: a trigger within a transaction is there where the transaction committed, and an
//! attempt that settled in a transaction wrote its effect once.

use std::collections::{BTreeMap, BTreeSet};

use quell::{Job, JobId, JobState, Task};

use super::super::seen::Counts;
use crate::chaos::workload::record::Entry;
use crate::chaos::workload::tasks::Booked;

/// The tables beside the store: committed orders, and the ledger as pairs of job and order.
pub(crate) type Tables = (Vec<i64>, Vec<(i64, i64)>);

/// Judges the tables against the store's rows and what callers recorded.
pub(super) fn effects_and_triggers_are_atomic(
    (orders, ledger): &Tables,
    jobs: &BTreeMap<JobId, Job>,
    entries: &[Entry],
    counts: &mut Counts,
) -> Result<(), String> {
    let booked = jobs.values().filter(|job| job.task.as_str() == Booked::NAME);
    let (mut triggered, mut settled) = (Vec::new(), Vec::new());
    for job in booked {
        let Booked { order } = job.payload.decode().map_err(|error| error.to_string())?;
        let (order, id) = (order.cast_signed(), job.id.get().cast_signed());
        triggered.push(order);
        match job.state {
            JobState::Succeeded => settled.push((id, order)),
            _ => return Err(format!("order {order} did not run: {job:?}")),
        }
    }
    same("orders and triggers", orders.clone(), triggered)?;
    same("the ledger and settled jobs", ledger.clone(), settled)?;
    let orders: BTreeSet<i64> = orders.iter().copied().collect();
    for entry in entries {
        match entry {
            Entry::Committed { order } if !orders.contains(&(order.cast_signed())) => {
                return Err(format!("order {order} was committed and is gone"));
            }
            Entry::RolledBack { order } if orders.contains(&(order.cast_signed())) => {
                return Err(format!("order {order} was rolled back and is there"));
            }
            Entry::RolledBack { .. } => counts.add("orders rolled back and not there", 1),
            _ => {}
        }
    }
    counts.add("orders committed with their trigger", orders.len());
    counts.add("jobs settled with their effect", ledger.len());
    Ok(())
}

/// Both have the same rows, each once.
fn same<T: Ord + Copy + std::fmt::Debug>(
    what: &str,
    mut one: Vec<T>,
    mut other: Vec<T>,
) -> Result<(), String> {
    one.sort_unstable();
    other.sort_unstable();
    if one == other {
        return Ok(());
    }
    let only = |of: &[T], not: &[T]| -> Vec<T> {
        of.iter().filter(|row| not.binary_search(row).is_err()).copied().collect()
    };
    let (left, right) = (only(&one, &other), only(&other, &one));
    Err(format!("{what} differ: {} and {} rows; {left:?}, {right:?}", one.len(), other.len()))
}

#[cfg(test)]
mod tests {
    use super::super::made::job;
    use super::*;

    #[test]
    fn r04_r22_a_trigger_or_an_effect_without_its_transaction_is_found() {
        let done = |id| job(id, Booked::NAME, r#"{"order":7}"#);
        let one = BTreeMap::from([(JobId::new(1), done(1))]);
        let two = BTreeMap::from([(JobId::new(1), done(1)), (JobId::new(2), done(2))]);
        let none = BTreeMap::new();
        let rolled_back = [Entry::RolledBack { order: 7 }];
        let lost = [Entry::Committed { order: 8 }];
        let entry = vec![(1, 7)];
        let table: [(&str, Tables, &BTreeMap<_, _>, &[Entry], bool); 7] = [
            ("all is well", (vec![7], entry.clone()), &one, &[], true),
            ("the trigger is lost", (vec![7], vec![]), &none, &[], false),
            ("triggered without a commit", (vec![], entry.clone()), &one, &[], false),
            ("settled without the effect", (vec![7], vec![]), &one, &[], false),
            ("the effect twice", (vec![7], vec![(1, 7), (1, 7)]), &one, &[], false),
            ("triggered twice", (vec![7], vec![(1, 7), (2, 7)]), &two, &[], false),
            ("a rollback that stayed", (vec![7], entry.clone()), &one, &rolled_back, false),
        ];
        for (what, tables, jobs, entries, expected) in table {
            let verdict =
                effects_and_triggers_are_atomic(&tables, jobs, entries, &mut Counts::default());
            assert_eq!(verdict.is_ok(), expected, "{what}: {verdict:?}");
        }
        let tables = (vec![7], entry);
        let verdict = effects_and_triggers_are_atomic(&tables, &one, &lost, &mut Counts::default());
        assert!(verdict.is_err(), "a commit that is gone");
    }
}
