//! Makes a failing plan smaller: drops steps and dangers while the same property still fails.

use super::plan::{Network, Plan};

/// The smallest plan found for which `fails` still says so; every step of the way is tried a few
/// times with another seed of chance, because dropping a step shifts all that is drawn after it.
pub fn minimise(plan: &Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
    let mut best = plan.clone();
    loop {
        let before = best.clone();
        drop_steps(&mut best, &fails);
        drop_dangers(&mut best, &fails);
        if best == before {
            return best;
        }
    }
}

/// Halves first, then single steps.
fn drop_steps(best: &mut Plan, fails: &impl Fn(&Plan) -> bool) {
    let mut size = best.steps.len().div_ceil(2).max(1);
    loop {
        let mut from = 0;
        while from < best.steps.len() {
            let mut less = best.clone();
            less.steps.drain(from..(from + size).min(best.steps.len()));
            match still(&less, fails) {
                Some(less) => *best = less,
                None => from += size,
            }
        }
        if size == 1 {
            return;
        }
        size = size.div_ceil(2);
    }
}

fn drop_dangers(best: &mut Plan, fails: &impl Fn(&Plan) -> bool) {
    let simpler: [fn(&mut Plan); 10] = [
        |plan| plan.strangers.clear(),
        |plan| plan.queues = 1,
        |plan| plan.schedules.clear(),
        |plan| plan.schedules.truncate(1),
        |plan| plan.network = Network::default(),
        |plan| plan.network.slow = 0,
        |plan| plan.network.deaf = 0,
        |plan| plan.failing = 0,
        |plan| plan.callers = 0,
        |plan| plan.workers = 1,
    ];
    for change in simpler {
        let mut less = best.clone();
        change(&mut less);
        if less != *best
            && let Some(less) = still(&less, fails)
        {
            *best = less;
        }
    }
}

fn still(plan: &Plan, fails: &impl Fn(&Plan) -> bool) -> Option<Plan> {
    let seeds = [plan.seed, 1, 2, 3];
    let mut tries = seeds.into_iter().map(|seed| Plan { seed, ..plan.clone() });
    tries.find(|plan| fails(plan))
}
