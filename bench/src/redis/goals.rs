//! The goals for Quell at its defaults, and whether the numbers of this run meet them.

use super::workloads::{QUELL, Workload};
use super::{Found, Round, median_by};
use crate::report::shown;

/// The peer that goals are beside, whichever of its set-ups is the better.
const PEER: &str = "bullmq";
const HEAD: &str = "\n**goals**: Quell at its defaults; the peer is the better one of bullmq's set-ups\n\n\
                    | workload | goal | Quell | peer | Quell / peer | met |\n\
                    | --- | --- | --- | --- | --- | --- |\n";

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// At least this multiple of the peer.
    Times(f64),
    /// At most so much, and such a tail.
    Within(f64, f64),
    /// At most so much, and less than the peer.
    Less(f64),
}

/// The rows of one run.
#[derive(Debug, Default)]
pub(super) struct Goals {
    rows: String,
}

impl Goals {
    /// Adds what a workload came to, where it has a goal.
    pub(super) fn add(&mut self, workload: &Workload, amount: &str, found: &Found) {
        let Some(goal) = workload.goal else { return };
        let quell = medians(found, |name, set_up| (name, set_up) == (QUELL.0, QUELL.1)).next();
        let peers = medians(found, |name, _| name == PEER).map(|(value, _)| value);
        let peer = match goal {
            Goal::Times(_) => peers.reduce(f64::max),
            Goal::Within(..) | Goal::Less(_) => peers.reduce(f64::min),
        };
        let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), shown);
        let (value, tail) = (quell.map(|(value, _)| value), quell.and_then(|(_, tail)| tail));
        let reached =
            tail.map_or_else(|| cell(value), |tail| format!("{}, {}", cell(value), shown(tail)));
        let ratio = value.zip(peer).map(|(value, peer)| value / peer);
        let met = match goal.is_met(value, tail, peer) {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not measured",
        };
        let (name, goal) = (workload.name, goal.words());
        let (peer, ratio) = (cell(peer), cell(ratio));
        self.rows.push_str(&format!(
            "| {name} ({amount}) | {goal} | {reached} | {peer} | {ratio} | {met} |\n"
        ));
    }

    /// The table; nothing where no workload of the run has a goal.
    pub(super) fn table(&self) -> String {
        if self.rows.is_empty() { String::new() } else { format!("{HEAD}{}", self.rows) }
    }
}

impl Goal {
    fn words(self) -> String {
        match self {
            Goal::Times(times) => format!("at least {times} x peer"),
            Goal::Within(median, p99) => format!("at most {median}, p99 {p99}"),
            Goal::Less(most) => format!("at most {most}, less than peer"),
        }
    }

    /// None where what it compares was not measured.
    fn is_met(self, value: Option<f64>, tail: Option<f64>, peer: Option<f64>) -> Option<bool> {
        match self {
            Goal::Times(times) => Some(value? >= times * peer?),
            Goal::Within(median, p99) => Some(value? <= median && tail? <= p99),
            Goal::Less(most) => Some(value? <= most && value? < peer?),
        }
    }
}

/// The medians of those contenders that got through, and of their tails.
fn medians(
    found: &Found,
    is_asked: impl Fn(&str, &str) -> bool,
) -> impl Iterator<Item = (f64, Option<f64>)> {
    let asked = found.iter().filter(move |(one, _)| is_asked(one.0, one.1));
    let through =
        asked.filter_map(|(_, rounds)| rounds.as_ref().ok()).filter(|one| !one.is_empty());
    through.map(|rounds| {
        let tails: Vec<f64> = rounds.iter().filter_map(|round| round.printed.p99).collect();
        (median_by(rounds, |round: &Round| round.value), crate::median_of(tails))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::found;
    use super::super::workloads::{Contender, WORKLOADS};
    use super::*;

    fn row(goal: Goal, found: &Found) -> String {
        let mut goals = Goals::default();
        goals.add(&Workload { name: "w", goal: Some(goal), ..WORKLOADS[0] }, "10", found);
        goals.table().trim_end().rsplit('\n').next().unwrap().to_owned()
    }

    #[test]
    fn quell_is_beside_the_better_one_of_the_peers_set_ups() {
        let (first, second) = (Contender("bullmq", "defaults"), Contender("bullmq", "best"));
        let all = found(&[(QUELL, 400.0), (first, 90.0), (second, 110.0)]);
        let no = "| w (10) | at least 4 x peer | 400.00 | 110.00 | 3.64 | no |";
        assert_eq!(row(Goal::Times(4.0), &all), no);
        let yes = "| w (10) | at least 3.5 x peer | 400.00 | 110.00 | 3.64 | yes |";
        assert_eq!(row(Goal::Times(3.5), &all), yes);
        let more = "| w (10) | at most 400, less than peer | 400.00 | 90.00 | 4.44 | no |";
        assert_eq!(row(Goal::Less(400.0), &all), more);
    }

    #[test]
    fn a_tail_counts_and_what_was_not_measured_is_not_met() {
        let mut all = found(&[(QUELL, 0.4)]);
        let unknown = "| w (10) | at most 0.5, p99 2 | 0.40 | - | - | not measured |";
        assert_eq!(row(Goal::Within(0.5, 2.0), &all), unknown);
        all[0].1.as_mut().unwrap()[0].printed.p99 = Some(2.5);
        let late = "| w (10) | at most 0.5, p99 2 | 0.40, 2.50 | - | - | no |";
        assert_eq!(row(Goal::Within(0.5, 2.0), &all), late);
        all[0].1 = Err("it died".to_owned());
        let gone = "| w (10) | at least 4 x peer | - | - | - | not measured |";
        assert_eq!(row(Goal::Times(4.0), &all), gone);
    }
}
