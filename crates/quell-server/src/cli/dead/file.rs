//! `quell dead export` and `import`: dead jobs as JSON lines.
//!
//! A file is read and checked to its end before anything is written.

use std::io::{Read, Write};
use std::path::PathBuf;

use anyhow::Context as _;
use quell::dead::{DeadExport, DeadFilter, exports};
use quell::trigger::Limits;
use serde_json::json;

use super::FilterArgs;
use super::desk::{Desk, Page};
use crate::cli::numbers::grouped;
use crate::cli::source::Source;
use crate::http::MAX_IMPORT_BYTES;

/// The most dead jobs in one call.
const BATCH: usize = 100;

/// `quell dead export`.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Write to this new file instead of standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    source: Source,
}

/// `quell dead import FILE`.
#[derive(Debug, clap::Args)]
pub struct ImportArgs {
    /// The file; `-` for standard input.
    file: PathBuf,
    /// Only check the file.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    source: Source,
}

pub(super) fn export(args: ExportArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let filter = DeadFilter { limit: BATCH, ..args.filter.filter()? };
    let desk = Desk::open(&args.source)?;
    let Some(path) = args.out else {
        write_lines(&desk, filter, out)?;
        return Ok(());
    };
    let what = || format!("cannot write {}", path.display());
    let file = std::fs::File::create_new(&path).with_context(what)?;
    let mut file = std::io::BufWriter::new(file);
    let count = write_lines(&desk, filter, &mut file)?;
    file.into_inner()
        .map_err(std::io::IntoInnerError::into_error)?
        .sync_all()
        .with_context(what)?;
    if args.source.json {
        return Ok(writeln!(out, "{}", json!({ "exported": count }))?);
    }
    Ok(writeln!(out, "{} dead jobs are in {}", grouped(count), path.display())?)
}

fn write_lines(desk: &Desk, mut filter: DeadFilter, out: &mut dyn Write) -> anyhow::Result<u64> {
    writeln!(out, "{}", exports::head())?;
    let mut count = 0;
    loop {
        let Page { exports, next } = desk.export(&filter)?;
        for export in &exports {
            writeln!(out, "{}", exports::line(export)?)?;
            count += 1;
        }
        if next.is_none() {
            out.flush()?;
            return Ok(count);
        }
        filter.before = next;
    }
}

pub(super) fn import(args: ImportArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let shown = args.file.display().to_string();
    let text = if shown == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        text
    } else {
        std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {shown}"))?
    };
    let exports = exports::read(&text, &Limits::default()).with_context(|| shown.clone())?;
    drop(text);
    if args.dry_run {
        if args.source.json {
            return Ok(writeln!(out, "{}", json!({ "matching": exports.len() }))?);
        }
        let count = grouped(exports.len() as u64);
        return Ok(writeln!(out, "{shown} is fine: {count} dead jobs; nothing was changed")?);
    }
    let desk = Desk::open(&args.source)?;
    let (mut came, mut known) = (0, 0);
    for batch in batches(exports)? {
        let [new, here] = desk.import(&batch).with_context(|| {
            let so_far = grouped(came);
            format!("stopped after {so_far} were imported; the same command does the rest")
        })?;
        (came, known) = (came + new, known + here);
    }
    if args.source.json {
        return Ok(writeln!(out, "{}", json!({ "imported": came, "known": known }))?);
    }
    write!(out, "{} imported", grouped(came))?;
    if known > 0 {
        write!(out, ", {} were here already", grouped(known))?;
    }
    Ok(writeln!(out)?)
}

/// Dead jobs with their lines, in batches that a server accepts.
fn batches(exports: Vec<DeadExport>) -> anyhow::Result<Vec<Vec<(DeadExport, String)>>> {
    let mut batches = Vec::new();
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for export in exports {
        let line = exports::line(&export)?;
        if batch.len() == BATCH || (!batch.is_empty() && bytes + line.len() > MAX_IMPORT_BYTES / 2)
        {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += line.len();
        batch.push((export, line));
    }
    batches.push(batch);
    Ok(batches.into_iter().filter(|batch| !batch.is_empty()).collect())
}
