//! Running a program that measures something: it has so much time, and what it says is kept.

use std::process::Command;

/// What a program printed, up to where it failed.
#[derive(Debug)]
pub(crate) struct Reported {
    pub(crate) text: String,
    pub(crate) failed: Option<String>,
}

/// Runs a program for this number of seconds at most.
pub(crate) fn run(program: &Command, seconds: u32) -> Reported {
    let ran = Command::new("timeout")
        .args(["--kill-after=5", &seconds.to_string()])
        .arg(program.get_program())
        .args(program.get_args())
        // Reasons are for a table.
        .env_remove("RUST_BACKTRACE")
        .env_remove("RUST_LIB_BACKTRACE")
        .output();
    let output = match ran {
        Ok(output) => output,
        Err(error) => {
            let failed = Some(format!("cannot run {:?}: {error}", program.get_program()));
            return Reported { text: String::new(), failed };
        }
    };
    let failed = match output.status.code() {
        Some(0) => None,
        Some(124 | 137) => Some(format!("took more than {seconds} s")),
        Some(_) | None => Some(reason(&String::from_utf8_lossy(&output.stderr))),
    };
    Reported { text: String::from_utf8_lossy(&output.stdout).into_owned(), failed }
}

/// A program's last words on one line.
pub(crate) fn reason(reported: &str) -> String {
    let said = reported.rsplit_once("Error: ").map_or(reported, |(_, said)| said);
    let words: Vec<&str> = said.split_whitespace().filter(|word| *word != "|").collect();
    let said: String = words.join(" ").chars().take(200).collect();
    if said.is_empty() { "it said nothing".to_owned() } else { said.replace('|', "/") }
}
