//! Rows of a file: CSV or JSON lines, gzipped or not.
//!
//! Invariant: the first bytes of a file decide its format, never its name.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use flate2::read::MultiGzDecoder;
use quell_core::Payload;
use quell_core::payload::MAX_PAYLOAD_BYTES;
use serde_json::{Map, Value};

use super::git::GitRows;

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// One row: named columns and their line.
#[derive(Debug)]
pub(super) struct Row {
    line: u64,
    columns: Value,
    /// The row as it was written, where that is JSON already.
    text: Option<String>,
}

impl Row {
    /// A row of named texts.
    pub(super) fn of_texts<'a>(
        line: u64,
        columns: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Row {
        let texts = columns.into_iter().map(|(name, text)| (name.to_owned(), text.into()));
        Row { line, columns: Value::Object(texts.collect()), text: None }
    }

    /// The row's line, from 1.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// The columns, as the source's key function takes them.
    pub(super) fn value(&self) -> &Value {
        &self.columns
    }

    /// The columns by name.
    pub(super) fn columns(&self) -> &Map<String, Value> {
        static NONE: std::sync::LazyLock<Map<String, Value>> =
            std::sync::LazyLock::new(Map::default);
        self.columns.as_object().unwrap_or_else(|| &NONE)
    }

    /// The row as one JSON object.
    pub(super) fn payload(&self) -> Payload {
        match &self.text {
            Some(text) => Payload::from_stored(text.as_str()),
            None => Payload::from_stored(self.columns.to_string()),
        }
    }
}

/// The rows of one source, in its order.
#[derive(Debug)]
pub(super) struct Rows {
    file: PathBuf,
    format: Format,
}

#[derive(Debug)]
enum Format {
    Csv { reader: Box<csv::Reader<BufReader<Input>>>, names: Vec<String> },
    JsonLines { reader: BufReader<Input>, line: u64 },
    Git(Box<GitRows>),
}

impl Rows {
    /// Opens a file, or the git repository in a directory.
    pub(super) fn open(file: &Path) -> Result<Rows> {
        let format = if file.is_dir() {
            Format::Git(Box::new(GitRows::open(file)?))
        } else {
            Rows::open_file(file).with_context(|| file.display().to_string())?
        };
        Ok(Rows { file: file.to_owned(), format })
    }

    fn open_file(file: &Path) -> Result<Format> {
        let mut reader = BufReader::new(Input::open(file)?);
        let head = reader.fill_buf().context("cannot be read")?;
        let first = head.iter().find(|byte| !byte.is_ascii_whitespace());
        match first {
            None => bail!("is empty: give a CSV file with a header row, or JSON lines"),
            Some(b'[') => bail!("is a JSON array: give JSON lines, one object per line"),
            Some(b'{') => Ok(Format::JsonLines { reader, line: 0 }),
            Some(_) => {
                let mut reader = Box::new(csv::Reader::from_reader(reader));
                let header = reader.headers().context("header row")?;
                let names = header.iter().map(str::to_owned).collect();
                Ok(Format::Csv { reader, names })
            }
        }
    }

    /// The columns of every row, where the format names them before the first one.
    pub(super) fn columns(&self) -> Option<Vec<String>> {
        match &self.format {
            Format::Csv { names, .. } => Some(names.clone()),
            Format::JsonLines { .. } => None,
            Format::Git(_) => Some(GitRows::COLUMNS.map(str::to_owned).to_vec()),
        }
    }

    /// The name of a row in errors.
    pub(super) fn place(&self, line: u64) -> String {
        let unit = match self.format {
            Format::Csv { .. } | Format::JsonLines { .. } => "line",
            Format::Git(_) => "change",
        };
        format!("{} {unit} {line}", self.file.display())
    }
}

impl Iterator for Rows {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.format {
            Format::Csv { reader, names } => {
                let row = next_csv(reader, names).transpose()?;
                let file = &self.file;
                Some(row.with_context(|| file.display().to_string()))
            }
            Format::JsonLines { reader, line } => {
                let row = next_json(reader, line).transpose()?;
                let (file, line) = (&self.file, *line);
                Some(row.with_context(|| format!("{} line {line}", file.display())))
            }
            Format::Git(rows) => rows.next(),
        }
    }
}

fn next_csv(reader: &mut csv::Reader<BufReader<Input>>, names: &[String]) -> Result<Option<Row>> {
    let mut record = csv::StringRecord::new();
    if !reader.read_record(&mut record).map_err(csv_error)? {
        return Ok(None);
    }
    let line = record.position().map_or(0, csv::Position::line);
    Ok(Some(Row::of_texts(line, names.iter().map(String::as_str).zip(&record))))
}

/// A message that names the line: the csv crate's own where it is clear.
fn csv_error(error: csv::Error) -> anyhow::Error {
    let line = error.position().map_or(0, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            anyhow::anyhow!("line {line}: has {len} fields, the header row has {expected_len}")
        }
        csv::ErrorKind::Utf8 { .. } => anyhow::anyhow!("line {line}: is not UTF-8"),
        csv::ErrorKind::Io(_) => anyhow::Error::from(error).context("cannot be read"),
        _ => anyhow::Error::from(error),
    }
}

fn next_json(reader: &mut BufReader<Input>, line: &mut u64) -> Result<Option<Row>> {
    loop {
        *line += 1;
        let mut bytes = Vec::new();
        let limit = MAX_PAYLOAD_BYTES as u64 + 1;
        let read = reader.take(limit).read_until(b'\n', &mut bytes).context("cannot be read")?;
        if read == 0 {
            return Ok(None);
        }
        ensure!(
            bytes.len() <= MAX_PAYLOAD_BYTES,
            "has more than {MAX_PAYLOAD_BYTES} bytes, the limit of a payload"
        );
        let text = String::from_utf8(bytes).context("is not UTF-8")?;
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        let columns: Value = serde_json::from_str(text).context("is not JSON")?;
        ensure!(columns.is_object(), "is not a JSON object: give one object per line");
        return Ok(Some(Row { line: *line, columns, text: Some(text.to_owned()) }));
    }
}

/// A file's bytes, unpacked where they were gzipped.
enum Input {
    Plain(HeadAndFile),
    Gzip(Box<MultiGzDecoder<HeadAndFile>>),
}

type HeadAndFile = std::io::Chain<Cursor<Vec<u8>>, File>;

impl Input {
    fn open(path: &Path) -> Result<Input> {
        let mut file = File::open(path).context("cannot be opened")?;
        let mut head = Vec::new();
        file.by_ref().take(GZIP.len() as u64).read_to_end(&mut head).context("cannot be read")?;
        let packed = head == GZIP;
        let bytes = Cursor::new(head).chain(file);
        Ok(if packed {
            Input::Gzip(Box::new(MultiGzDecoder::new(bytes)))
        } else {
            Input::Plain(bytes)
        })
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Input::Plain(bytes) => bytes.read(buffer),
            Input::Gzip(bytes) => bytes.read(buffer),
        }
    }
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Input::Plain(_) => "Plain",
            Input::Gzip(_) => "Gzip",
        })
    }
}
