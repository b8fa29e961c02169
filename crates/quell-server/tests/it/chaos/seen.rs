//! What a run has seen so far: it goes on until that is enough to mean something, whatever the
//! machine's speed.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::fault::Kind;
use super::plan::Deck;

/// A count by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts(BTreeMap<&'static str, usize>);

impl Counts {
    pub(super) fn add(&mut self, name: &'static str, count: usize) {
        *self.0.entry(name).or_default() += count;
    }

    pub(super) fn of(&self, name: &str) -> usize {
        self.0.get(name).copied().unwrap_or_default()
    }

    pub(super) fn extend(&mut self, other: Counts) {
        other.0.into_iter().for_each(|(name, count)| self.add(name, count));
    }

    /// What is missing of what a run needs.
    pub(super) fn missing(&self, needs: &[(&'static str, usize)]) -> Vec<String> {
        let missing = needs.iter().filter(|(name, need)| self.of(name) < *need);
        missing.map(|(name, need)| format!("{name}: {} of {need}", self.of(name))).collect()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = self.0.iter().map(|(name, count)| format!("{name}: {count}"));
        f.write_str(&each.collect::<Vec<_>>().join(", "))
    }
}

/// Texts in the lines of histories and records, and what each line counts as.
const LINES: &[(&[&str], &str)] = &[
    (&["\"event\":\"trigger_ok\""], "triggers accepted"),
    (&["\"event\":\"trigger_ok\"", "\"receipt\":\"duplicate\""], "duplicates answered"),
    (&["\"event\":\"trigger_fail\""], "calls refused"),
    (&["\"event\":\"trigger_info\""], "calls of unknown outcome"),
    (&["\"event\":\"stamp_ok\""], "stamps accepted"),
    (&["\"event\":\"start\""], "attempts"),
    (&["\"event\":\"start\"", "\"task\":\"rare\""], "attempts of the rare task"),
    (&["\"event\":\"start\"", "\"task\":\"narrow\""], "attempts under concurrency limits"),
    (&["\"event\":\"start\"", "\"task\":\"rated\""], "attempts under rates"),
    (&["\"event\":\"start\"", "\"task\":\"note\""], "attempts of servers"),
    (&["\"event\":\"schedule\""], "schedules on record"),
    (&["\"event\":\"lapse\""], "leases expired"),
    (&["\"became\":{\"absorbed\""], "jobs absorbed"),
    (&["\"event\":\"settle\"", "\"became\":\"refused\""], "late settlements refused"),
    (&["{\"unanswered\""], "orders unanswered"),
    (&["\"answer\"", "\"existing\":true"], "orders answered again"),
    (&["\"answer\"", "\"output\":\""], "orders answered with their output"),
    (&["\"conflict\""], "conflicts"),
    (&["\"committed\""], "transactions committed"),
    (&["\"rolled_back\""], "transactions rolled back"),
];

/// Counts what processes write while they do.
#[derive(Debug)]
pub(super) struct Tally {
    folder: PathBuf,
    read: BTreeMap<PathBuf, u64>,
    counts: Counts,
}

impl Tally {
    pub(super) fn new(folder: &Path) -> Tally {
        Tally { folder: folder.to_owned(), read: BTreeMap::new(), counts: Counts::default() }
    }

    pub(super) fn fault(&mut self, kind: Kind) {
        self.counts.add(kind.name(), 1);
    }

    /// Counts the lines that are new.
    pub(super) fn look(&mut self) -> &Counts {
        for entry in std::fs::read_dir(&self.folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "jsonl" || end == "record") {
                self.read(path);
            }
        }
        &self.counts
    }

    fn read(&mut self, path: PathBuf) {
        let mut file = std::fs::File::open(&path).unwrap();
        let offset = self.read.entry(path).or_default();
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(*offset)).unwrap();
        file.read_to_end(&mut text).unwrap();
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        *offset += whole as u64;
        for line in String::from_utf8_lossy(&text[..whole]).lines() {
            for (parts, name) in LINES {
                if parts.iter().all(|part| line.contains(part)) {
                    self.counts.add(name, 1);
                }
            }
        }
    }
}

/// What a run must see before it may end: each kind of fault and each part of the load.
pub(super) fn needs(deck: Deck, has_books: bool) -> Vec<(&'static str, usize)> {
    let mut needs: Vec<_> = deck.kinds().map(|kind| (kind.name(), 1)).collect();
    needs.extend([
        ("triggers accepted", 300),
        ("stamps accepted", 100),
        ("attempts", 200),
        ("attempts of the rare task", 5),
        ("attempts under concurrency limits", 40),
        ("attempts under rates", 12),
        ("attempts of servers", 3),
        ("duplicates answered", 8),
        ("jobs absorbed", 5),
        ("leases expired", 6),
        ("orders unanswered", 5),
        ("orders answered again", 10),
        ("orders answered with their output", 3),
        ("conflicts", 5),
    ]);
    if has_books {
        needs.extend([("transactions committed", 15), ("transactions rolled back", 5)]);
    }
    needs
}

#[test]
fn a_run_is_not_over_before_each_need_is_met() {
    let mut counts = Counts::default();
    counts.add("conflicts", 2);
    let needs = [("conflicts", 2), ("leases expired", 1)];
    assert_eq!(counts.missing(&needs), ["leases expired: 0 of 1"]);
    counts.add("leases expired", 1);
    assert!(counts.missing(&needs).is_empty());
}

#[test]
fn lines_are_counted_once_and_torn_ones_when_they_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("1.jsonl");
    let line = "{\"event\":\"start\",\"task\":\"rare\"}\n";
    std::fs::write(&file, format!("{line}{}", &line[..9])).unwrap();
    let mut tally = Tally::new(folder.path());
    assert_eq!(tally.look().of("attempts of the rare task"), 1);
    std::fs::write(&file, format!("{line}{line}")).unwrap();
    assert_eq!(tally.look().of("attempts"), 2);
}
