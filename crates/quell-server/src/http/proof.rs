//! `GET /v1/proof`: the checker on the last day of the history that this server records.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use quell::Timestamp;
use quell_check::{Line, PROPERTIES, Report, check, elsewhere, merge, parse, promise};
use tokio::sync::Mutex;

use super::Api;
use super::error::{ApiError, Refused};
use crate::history::host_time;
use crate::view::{self, BrokenPromise, ProvenProperty};

/// The most bytes that are judged: the newest.
const MOST: u64 = 32 << 20;
/// The oldest events that are judged.
const AGE: Duration = Duration::from_secs(86_400);
/// How long a judgement is shown.
const FRESH: Duration = Duration::from_secs(10);

/// The history that a server records, and the last judgement of it. Clones share that.
#[derive(Clone, Debug, Default)]
pub struct Proofs(Option<Arc<Judge>>);

#[derive(Debug)]
struct Judge {
    file: PathBuf,
    last: Arc<Mutex<Option<(Instant, view::Proof)>>>,
}

impl Proofs {
    /// Those of a history in a file.
    #[must_use]
    pub fn of(file: PathBuf) -> Self {
        Proofs(Some(Arc::new(Judge { file, last: Arc::default() })))
    }
}

impl Judge {
    /// The judgement, at most ten seconds old. All who ask meanwhile share it.
    async fn proof(&self) -> Result<view::Proof, ApiError> {
        // The work owns the lock: a request that gives up does not let another one begin beside it.
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some((_, proof)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(proof.clone());
        }
        let file = self.file.clone();
        let judging = tokio::task::spawn_blocking(move || {
            let proof = judge(&file)?;
            *last = Some((Instant::now(), proof.clone()));
            anyhow::Ok(proof)
        });
        let failed = |why: &dyn std::fmt::Display| {
            ApiError::internal(StatusCode::INTERNAL_SERVER_ERROR, "internal", why)
        };
        let proof = judging.await.map_err(|error| failed(&error))?;
        proof.map_err(|error| failed(&format!("{error:#}")))
    }
}

/// `GET /v1/proof`.
#[utoipa::path(
    get,
    path = "/v1/proof",
    tag = "operation",
    operation_id = "server_proof",
    summary = "Judge the history that this server records, by property.",
    description = "As `quell check --partial` judges the last day of the file of `quell serve --history`, at most its \
                   newest 32 MiB. 404 where the server records no history.",
    responses((status = 200, body = view::Proof, description = "Done."), Refused),
)]
pub(super) async fn show(State(api): State<Api>) -> Result<Json<view::Proof>, ApiError> {
    let Some(judge) = &api.proofs.0 else {
        let message = "the server records no history: start it with --history FILE";
        return Err(ApiError::not_found("history", message));
    };
    judge.proof().await.map(Json)
}

fn judge(path: &Path) -> anyhow::Result<view::Proof> {
    let (text, cut) = newest(path)?;
    let lines = parse(&path.display().to_string(), whole_lines(&text))?;
    let oldest = host_time().before(AGE);
    // What came before, and what other processes did, counts as not judged.
    let is_recent = |line: &Line| line.w.is_none_or(|at| at >= oldest);
    let lines: Vec<Line> = lines.into_iter().filter(is_recent).collect();
    let times = || lines.iter().filter_map(|line| line.w);
    let span = (times().min(), times().max());
    let lines = merge(vec![lines, vec![elsewhere()]]);
    Ok(shown(&check(&lines), &lines, span, cut))
}

/// The newest bytes of a file, and whether there are older ones.
fn newest(path: &Path) -> anyhow::Result<(String, bool)> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(MOST);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes)?;
    if from > 0 {
        // The first line is only its end.
        let begin = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        bytes.drain(..begin);
    }
    Ok((String::from_utf8_lossy(&bytes).into_owned(), from > 0))
}

/// Without a last line that is being written.
fn whole_lines(text: &str) -> &str {
    text.rfind('\n').and_then(|end| text.get(..=end)).unwrap_or_default()
}

fn shown(
    report: &Report,
    lines: &[Line],
    (from, to): (Option<Timestamp>, Option<Timestamp>),
    cut: bool,
) -> view::Proof {
    let broken = |property: &str| {
        report.violations.iter().filter(|violation| violation.property == property).count()
    };
    let property = |name: &&str| {
        let cases = report.cases.get(name)?;
        Some(ProvenProperty {
            property: (*name).to_owned(),
            promise: promise(name).unwrap_or_default().to_owned(),
            judged: cases.judged,
            unjudged: cases.unjudged.clone(),
            broken: broken(name),
        })
    };
    let event = |at: &usize| lines.get(*at).and_then(|line| serde_json::to_string(line).ok());
    let violations = report.violations.iter().map(|violation| BrokenPromise {
        property: violation.property.to_owned(),
        message: violation.message.clone(),
        events: violation.lines.iter().filter_map(event).collect(),
    });
    let properties: Vec<ProvenProperty> = PROPERTIES.iter().filter_map(property).collect();
    view::Proof {
        at: host_time().to_string(),
        from: from.map(|at| at.to_string()),
        to: to.map(|at| at.to_string()),
        cut,
        events: report.events.saturating_sub(1),
        accepted: report.accepted,
        attempts: report.attempts,
        pending: report.pending,
        judged: properties.iter().map(|one| one.judged).sum(),
        properties,
        violations: violations.collect(),
    }
}
