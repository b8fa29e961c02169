//! Dead-job exports: files of JSON lines, whose first line names the format (R26).
//!
//! A reader has all of a file checked before anything of it is used.

use serde::{Deserialize, Serialize};

use crate::{DeadExport, Error, Limits, Result};

/// What the first line says.
const FORMAT: &str = "quell-dead-jobs";
/// The version that is written; a reader knows all up to it.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    format: String,
    version: u32,
}

/// The first line of a file, without its end.
#[must_use]
pub fn head() -> String {
    format!("{{\"format\":\"{FORMAT}\",\"version\":{VERSION}}}")
}

/// One dead job as a line, without its end.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a dead job that has no JSON form, which no
/// store has written.
pub fn line(dead_job: &DeadExport) -> Result<String> {
    let id = dead_job.job.id;
    serde_json::to_string(dead_job)
        .map_err(|error| Error::invalid("exports", format!("job {id} has no JSON form: {error}")))
}

/// The dead jobs of a whole file.
///
/// ```
/// use quell_core::{Limits, exports};
///
/// assert!(exports::read(&exports::head(), &Limits::default())?.is_empty());
/// let error = exports::read("id,task", &Limits::default()).unwrap_err();
/// assert_eq!(error.field(), Some("file"));
/// # Ok::<(), quell_core::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the first line at fault: another
/// format, a version that this program does not know, a line that is no dead job, or a dead job
/// that [`DeadExport::validate`] refuses.
pub fn read(text: &str, limits: &Limits) -> Result<Vec<DeadExport>> {
    let mut lines = text.lines().zip(1_u64..);
    let (first, _) = lines.next().unwrap_or_default();
    check_head(first)?;
    let written = lines.filter(|(line, _)| !line.trim().is_empty());
    written.map(|(line, number)| parse(line, number, limits)).collect()
}

fn check_head(line: &str) -> Result<()> {
    let foreign = || {
        let message = format!(
            "line 1: this is not a dead-job export, which begins with {}: give a file that \
             `quell dead export` wrote",
            head()
        );
        Error::invalid("file", message)
    };
    let head: Head = serde_json::from_str(line).map_err(|_| foreign())?;
    if head.format != FORMAT || head.version == 0 {
        return Err(foreign());
    }
    if head.version > VERSION {
        let found = head.version;
        let message = format!(
            "line 1: the file has version {found}, this program knows up to {VERSION}: update it"
        );
        return Err(Error::invalid("file", message));
    }
    Ok(())
}

fn parse(line: &str, number: u64, limits: &Limits) -> Result<DeadExport> {
    let at = |what: String| Error::invalid("file", format!("line {number}: {what}"));
    let dead_job: DeadExport =
        serde_json::from_str(line).map_err(|error| at(format!("not a dead job: {error}")))?;
    dead_job.validate(limits).map_err(|error| at(error.to_string()))?;
    Ok(dead_job)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Job, JobId, JobState, NewTrigger, Past, Payload, QueueName, TaskName, Timestamp};

    fn of(id: u64) -> DeadExport {
        let (task, queue) = (TaskName::new("t").unwrap(), QueueName::new("q").unwrap());
        let trigger = NewTrigger::new(task, queue, Payload::from_stored("{\"a\":\"\\u0000\"}"));
        let job = Job::unkeyed(JobId::new(id), &trigger, Timestamp::from_secs(0));
        let ended_at = Some(Timestamp::from_secs(9));
        let job = Job { state: JobState::Dead, ended_at, ..job };
        DeadExport { job, attempts: Vec::new(), effects: Vec::new(), past: Past::default() }
    }

    #[test]
    fn r26_a_file_is_read_as_it_was_written() {
        let dead_jobs = vec![of(1), of(2)];
        let mut file = head();
        for dead_job in &dead_jobs {
            file.push('\n');
            file.push_str(&line(dead_job).unwrap());
        }
        assert_eq!(read(&file, &Limits::default()).unwrap(), dead_jobs);
        assert_eq!(read(&file.replace('\n', "\r\n\r\n"), &Limits::default()).unwrap(), dead_jobs);
    }

    #[test]
    fn r40_a_foreign_file_is_refused_by_its_line() {
        let good = format!("{}\n{}", head(), line(&of(1)).unwrap());
        let table = [
            (String::new(), "line 1: this is not a dead-job export"),
            ("{\"format\":\"other\",\"version\":1}".to_owned(), "line 1: this is not"),
            (line(&of(1)).unwrap(), "line 1: this is not"),
            (good.replacen("1}", "2}", 1), "version 2, this program knows up to 1"),
            (format!("{good}\n\n{{}}"), "line 4: not a dead job: missing field"),
            (format!("{good}\n{{\"job\""), "line 3: not a dead job"),
            (good.replace("\"dead\"", "\"running\""), "line 2: state is not that of a dead job"),
        ];
        for (file, expected) in table {
            let error = read(&file, &Limits::default()).unwrap_err();
            assert_eq!(error.field(), Some("file"));
            assert!(error.to_string().contains(expected), "{error}, not {expected}");
        }
    }
}
