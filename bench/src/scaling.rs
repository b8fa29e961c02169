//! How Quell alone scales on PostgreSQL: each part is a call of `quell-postgres-scaling`, which prints
//! a table line by line; here they are put together. Of a part that fails, the printed lines are shown.

use std::io::Write;

use quell_services::Postgres;
use serde::Deserialize;

use crate::postgres::Args;
use crate::program::Reported;
use crate::report::shown;

const PROGRAM: &str = "quell-postgres-scaling";
/// Ten million jobs through the tables take the better part of an hour on a slow machine.
const SECONDS: u32 = 2 * 3_600;

struct Part {
    name: &'static str,
    /// What the first column names.
    case: &'static str,
    args: &'static [&'static str],
    quick: &'static [&'static str],
}

const PARTS: [Part; 10] = [
    Part {
        name: "idle worker with 50 queues",
        case: "worker of",
        args: &["idle"],
        quick: &["idle", "--seconds", "13"],
    },
    Part {
        name: "drain by workers",
        case: "workers",
        args: &["workers"],
        quick: &["workers", "--count", "30000"],
    },
    Part {
        name: "claims before a backlog",
        case: "jobs that wait",
        args: &["backlog"],
        quick: &["backlog", "--backlogs", "1000,10000,100000"],
    },
    Part {
        name: "triggers beside open windows",
        case: "open windows",
        args: &["windows"],
        quick: &["windows", "--windows", "1000,100000"],
    },
    Part {
        name: "claims of a queue that limits its partitions",
        case: "partitions that wait",
        args: &["partitions"],
        quick: &["partitions", "--partitions", "1000,10000"],
    },
    Part {
        name: "jobs beside an open snapshot",
        case: "the snapshot",
        args: &["snapshot"],
        quick: &["snapshot", "--seconds", "8"],
    },
    Part {
        name: "256 jobs at once without a snapshot",
        case: "time",
        args: &["snapshot", "--without", "--at-once", "256", "--seconds", "120"],
        quick: &["snapshot", "--without", "--at-once", "256", "--seconds", "8"],
    },
    Part {
        name: "waits for a start beside an open snapshot",
        case: "the snapshot",
        args: &["pickup"],
        quick: &["pickup", "--seconds", "10"],
    },
    Part {
        name: "callers' own transactions",
        case: "transactions with",
        args: &["callers"],
        quick: &["callers", "--rounds", "3", "--seconds", "2"],
    },
    Part {
        name: "bloat",
        case: "jobs gone through",
        args: &["bloat"],
        quick: &["bloat", "--count", "100000", "--round", "10000"],
    },
];

/// A line that the program printed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Columns(Vec<String>),
    Row(String, Vec<Option<f64>>),
    Verdict(String),
}

/// The tables, and the lines of JSON that they were made of.
pub(crate) fn measure(args: &Args, server: &Postgres) -> anyhow::Result<(String, String)> {
    let (mut tables, mut lines) = (String::new(), String::new());
    for part in PARTS.iter().filter(|part| args.wants(part.name)) {
        writeln!(std::io::stderr(), "{}", part.name)?;
        let reported = args.ask(server, PROGRAM, args.sized(part.args, part.quick), SECONDS);
        if let Some(reason) = &reported.failed {
            writeln!(std::io::stderr(), "  failed: {reason}")?;
        }
        tables.push_str(&table(part, &reported)?);
        lines.push_str(&reported.text);
    }
    Ok((tables, lines))
}

fn table(part: &Part, reported: &Reported) -> anyhow::Result<String> {
    let mut verdict = reported.failed.as_ref().map(|reason| format!("failed: {reason}"));
    let mut rows = String::new();
    for line in reported.text.lines() {
        match serde_json::from_str(line)? {
            Line::Columns(columns) => {
                rows.push_str(&format!("| {} | {} |\n", part.case, columns.join(" | ")));
                rows.push_str(&format!("|{}\n", " --- |".repeat(columns.len() + 1)));
            }
            Line::Row(case, cells) => {
                let cell = |value: &Option<f64>| value.map_or_else(|| "-".to_owned(), shown);
                let cells: Vec<String> = cells.iter().map(cell).collect();
                rows.push_str(&format!("| {case} | {} |\n", cells.join(" | ")));
            }
            Line::Verdict(said) => verdict = Some(verdict.unwrap_or(said)),
        }
    }
    Ok(format!("\n**{}**: {}\n\n{rows}", part.name, verdict.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_shown_as_a_table_up_to_where_it_failed() {
        let rows = "{\"columns\":[\"a\",\"b\"]}\n{\"row\":[\"10^3\",[1.5,null]]}\n";
        let shown = "| jobs that wait | a | b |\n| --- | --- | --- |\n| 10^3 | 1.50 | - |\n";
        for (last, failed, verdict) in [
            ("{\"verdict\":\"met\"}\n", None, "met"),
            ("", Some("disk full".to_owned()), "failed: disk full"),
        ] {
            let reported = Reported { text: format!("{rows}{last}"), failed };
            let expected = format!("\n**claims before a backlog**: {verdict}\n\n{shown}");
            assert_eq!(table(&PARTS[2], &reported).unwrap(), expected);
        }
    }
}
