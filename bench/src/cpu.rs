//! Processor time from `/proc`, in ticks: a tick is a hundredth of a second on Linux.

use anyhow::Context;

/// Ticks in a second.
pub(crate) const TICKS: f64 = 100.0;

/// What `/proc/PID/stat` says of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    pid: u32,
    parent: u32,
    /// User and system time of all its threads.
    own: u64,
    /// The same of children that have ended.
    ended: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // A program's name may have spaces and parentheses in it.
        let (front, fields) = text.rsplit_once(')')?;
        let pid = front.split_whitespace().next()?.parse().ok()?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let tick = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let parent = fields.get(1)?.parse().ok()?;
        Some(Stat { pid, parent, own: tick(11)? + tick(12)?, ended: tick(13)? + tick(14)? })
    }
}

/// User and system time of this process.
pub(crate) fn of_this_process() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    Ok(Stat::parse(&text).context("/proc/self/stat")?.own)
}

/// User and system time of a process and all that descend from it, the ended ones among them.
pub(crate) fn of_tree(root: u32) -> anyhow::Result<u64> {
    let mut stats = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(is_process) {
            continue;
        }
        // A process may end while the folder is read.
        let text = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        stats.extend(Stat::parse(&text));
    }
    sum(&stats, root).with_context(|| format!("process {root} has ended"))
}

fn sum(stats: &[Stat], root: u32) -> Option<u64> {
    let this = stats.iter().find(|stat| stat.pid == root)?;
    let children = stats.iter().filter(|stat| stat.parent == root && stat.pid != root);
    let below: u64 = children.filter_map(|child| sum(stats, child.pid)).sum();
    Some(this.own + this.ended + below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc_is_read_whatever_the_program_is_called() {
        let text = "7 (a) b) S 3 7 7 0 -1 4194560 1 0 0 0 10 20 300 400 20 0 1 0 5";
        assert_eq!(Stat::parse(text), Some(Stat { pid: 7, parent: 3, own: 30, ended: 700 }));
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn a_tree_has_the_time_of_its_descendants_and_of_no_other() {
        let stat = |pid, parent, own, ended| Stat { pid, parent, own, ended };
        let stats = [stat(1, 0, 1_000, 0), stat(2, 1, 1, 10), stat(3, 2, 2, 0), stat(4, 1, 500, 0)];
        assert_eq!(sum(&stats, 2), Some(13));
        assert_eq!(sum(&stats, 9), None);
        assert!(of_tree(std::process::id()).unwrap() >= of_this_process().unwrap());
    }
}
