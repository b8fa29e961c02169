//! Reads, several in one round trip and of one moment, and their results.

use quell_core::{JobId, Result, Timestamp};
use redis::Value;

use crate::known::Pairs;
use crate::link::ScriptCall;
use crate::open::Numbered;
use crate::pack::{Item, list, pack};
use crate::portions::Order;
use crate::row::corrupt;
use crate::shard::{Shard, Time};

/// Fields of one command: Lua's stack is not without end.
const MOST_FIELDS: usize = 4_000;
/// Bytes of rows that one call reads.
pub(crate) const MOST_BYTES: u64 = 4 << 20;

/// Something to read.
#[derive(Clone, Debug)]
pub(crate) enum Read {
    /// Fields of a hash.
    Fields(String, Vec<String>),
    /// The lengths of fields of a hash, in bytes; 0 for those that are missing.
    Lengths(String, Vec<String>),
    /// The scores of members of a sorted set.
    Scores(String, Vec<String>),
    /// All of a hash.
    All(String),
    /// A string.
    Text(String),
    /// The members of a set.
    Members(String),
    /// The first elements of a list, at most this number.
    First(String, usize),
    /// Members of a sorted set from the lowest score on, at most `limit`.
    Lowest { key: String, from: Score, to: Score, limit: usize },
    /// How many fields a hash has.
    Count(String),
    /// Fields of a hash from a cursor on, about this number of them.
    Scan(String, String, usize),
    /// The same, with their values.
    ScanPairs(String, String, usize),
    /// Fields of a hash, as many as the bound of bytes of a script allows, and one at least.
    Bounded(String, Vec<String>),
    /// Members of a sorted set, at most `limit`, `after` a member that has the score `from`, or from
    /// the first of that score on. It costs the same wherever in the set they are.
    Portion { key: String, order: Order, from: Score, after: Option<String>, limit: usize },
    /// The server's clock; the key is the store's clock, which says where to ask.
    ServerTime(String),
    /// Increments a counter by this number.
    Reserve(String, u64),
}

/// A bound of scores.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Score {
    Min,
    At(Timestamp),
    Max,
}

impl Score {
    fn item(self) -> Item {
        match self {
            Score::Min => Item::from("-inf"),
            Score::At(at) => Item::from(at.as_micros()),
            Score::Max => Item::from("+inf"),
        }
    }

    /// As Redis reads it where a sign for an excluded bound comes before it.
    fn text(self) -> Item {
        match self {
            Score::At(at) => Item::from(at.as_micros().to_string()),
            Score::Min | Score::Max => self.item(),
        }
    }
}

impl Read {
    /// A lowest read without bounds.
    pub(crate) fn lowest(key: String, limit: usize) -> Self {
        Read::Lowest { key, from: Score::Min, to: Score::Max, limit }
    }

    fn key(&self) -> &String {
        match self {
            Read::Fields(key, _)
            | Read::Lengths(key, _)
            | Read::Scores(key, _)
            | Read::All(key)
            | Read::Text(key)
            | Read::Members(key)
            | Read::First(key, _)
            | Read::Lowest { key, .. }
            | Read::Count(key)
            | Read::Scan(key, _, _)
            | Read::ScanPairs(key, _, _)
            | Read::Bounded(key, _)
            | Read::Portion { key, .. }
            | Read::ServerTime(key)
            | Read::Reserve(key, _) => key,
        }
    }

    fn item(&self, key: usize) -> Item {
        let texts = |texts: &[String]| {
            Item::List(texts.iter().map(|text| Item::from(text.as_str())).collect())
        };
        match self {
            Read::Fields(_, fields) => list!["h", key, texts(fields)],
            Read::Lengths(_, fields) => list!["e", key, texts(fields)],
            Read::Scores(_, members) => list!["m", key, texts(members)],
            Read::All(_) => list!["a", key],
            Read::Text(_) => list!["g", key],
            Read::Members(_) => list!["s", key],
            // The script is given the index of the last.
            Read::First(_, count) => list!["l", key, count.saturating_sub(1)],
            Read::Lowest { from, to, limit, .. } => {
                list!["z", key, from.item(), to.item(), *limit]
            }
            Read::Count(_) => list!["n", key],
            Read::Scan(_, cursor, count) => list!["c", key, cursor.as_str(), *count],
            Read::ScanPairs(_, cursor, count) => list!["d", key, cursor.as_str(), *count],
            Read::Bounded(_, fields) => {
                list!["b", key, texts(fields), Item::from_count(MOST_BYTES)]
            }
            Read::Portion { order, from, after, limit, .. } => {
                let after = after.as_deref().map_or(Item::NOTHING, Item::from);
                list!["p", key, *order == Order::Lowest, from.text(), after, *limit]
            }
            Read::ServerTime(_) => list!["t", key],
            Read::Reserve(_, by) => list!["i", key, by.to_string()],
        }
    }
}

/// What a look brought, in the order of its requests.
#[derive(Debug)]
pub(crate) struct Looked {
    pub(crate) now: Timestamp,
    answers: std::vec::IntoIter<Value>,
}

impl Shard {
    /// Reads all of these at one moment.
    pub(crate) async fn look(
        &self,
        what: &'static str,
        time: Time,
        reads: &[Read],
    ) -> Result<Looked> {
        let mut keys = Numbered::new(self.keys.clock());
        let items: Vec<Item> =
            reads.iter().map(|read| read.item(keys.number(read.key().clone()))).collect();
        let asked = self.time_argument(time);
        let (keys, packed) = (keys.into_names(), pack(&items));
        let args = [asked.as_bytes(), packed.as_slice()];
        let call = ScriptCall { script: &self.scripts.read, keys: &keys, args: &args };
        // Numbers that are reserved twice are no loss.
        let answer = self.link.read(what, call).await?;
        let mut answers = values(answer)?.into_iter();
        let now = text(answers.next().unwrap_or(Value::Nil))?;
        let now = now.parse().map_err(|_| corrupt(format_args!("the time {now:?}")))?;
        Ok(Looked { now: self.see(Timestamp::from_micros(now)), answers })
    }
}

/// Splits fields into as many reads as they need.
pub(crate) fn read_fields(key: &str, fields: &[String]) -> Vec<Read> {
    let chunks = fields.chunks(MOST_FIELDS);
    chunks.map(|fields| Read::Fields(key.to_owned(), fields.to_vec())).collect()
}

impl Looked {
    /// Splits off the answers after the first `first`.
    pub(crate) fn split_off(&mut self, first: usize) -> Looked {
        let mut answers: Vec<Value> = self.answers.by_ref().collect();
        let rest = answers.split_off(first.min(answers.len()));
        self.answers = answers.into_iter();
        Looked { now: self.now, answers: rest.into_iter() }
    }

    fn next(&mut self) -> Value {
        self.answers.next().unwrap_or(Value::Nil)
    }

    /// The next answer: values of fields.
    pub(crate) fn fields(&mut self) -> Result<Vec<Option<Vec<u8>>>> {
        values(self.next())?.into_iter().map(maybe_bytes).collect()
    }

    /// The next answer: one field or string.
    pub(crate) fn text(&mut self) -> Result<Option<Vec<u8>>> {
        match self.next() {
            Value::Array(mut values) => values.pop().map_or(Ok(None), maybe_bytes),
            value => maybe_bytes(value),
        }
    }

    /// The next answer: all pairs of a hash.
    pub(crate) fn pairs(&mut self) -> Result<Pairs> {
        pairs(values(self.next())?.into_iter())
    }

    /// The next answer: the cursor after a scan, `0` at its end, and the pairs that it met.
    pub(crate) fn scanned_pairs(&mut self) -> Result<(String, Pairs)> {
        let mut met = values(self.next())?.into_iter();
        let cursor = met.next().map(text).transpose()?;
        Ok((cursor.unwrap_or_else(|| "0".to_owned()), pairs(met)?))
    }

    /// The next answer: members of a set or a list.
    pub(crate) fn members(&mut self) -> Result<Vec<String>> {
        values(self.next())?.into_iter().map(text).collect()
    }

    /// The next answer: the cursor after a scan, `0` at its end, and the fields that it met.
    pub(crate) fn scanned(&mut self) -> Result<(String, Vec<String>)> {
        let mut met = self.members()?.into_iter();
        Ok((met.next().unwrap_or_else(|| "0".to_owned()), met.collect()))
    }

    /// The next answer: a number for each field or member; 0 where it is missing.
    pub(crate) fn numbers(&mut self) -> Result<Vec<u64>> {
        values(self.next())?.into_iter().map(as_number).collect()
    }

    /// The next answer: for each member of a sorted set, whether it is there.
    pub(crate) fn present(&mut self) -> Result<Vec<bool>> {
        let scores = values(self.next())?.into_iter();
        scores.map(|score| Ok(maybe_bytes(score)?.is_some())).collect()
    }

    /// The next answer: members with their scores.
    pub(crate) fn scored(&mut self) -> Result<Vec<(String, Timestamp)>> {
        scored(self.next())
    }

    /// The next answer: a number.
    pub(crate) fn number(&mut self) -> Result<u64> {
        as_number(self.next())
    }
}

fn pairs(mut values: std::vec::IntoIter<Value>) -> Result<Pairs> {
    let mut pairs = Vec::with_capacity(values.len() / 2);
    while let (Some(name), Some(value)) = (values.next(), values.next()) {
        pairs.push((text(name)?, maybe_bytes(value)?.unwrap_or_default()));
    }
    Ok(pairs)
}

fn as_number(value: Value) -> Result<u64> {
    match value {
        Value::Int(number) => Ok(u64::try_from(number).unwrap_or(0)),
        Value::Nil => Ok(0),
        value => {
            let text = text(value)?;
            text.parse().map_err(|_| corrupt(format_args!("the number {text:?}")))
        }
    }
}

fn scored(value: Value) -> Result<Vec<(String, Timestamp)>> {
    let mut values = values(value)?.into_iter();
    let mut scored = Vec::with_capacity(values.len() / 2);
    while let (Some(member), Some(score)) = (values.next(), values.next()) {
        scored.push((text(member)?, moment(&text(score)?)?));
    }
    Ok(scored)
}

/// Reads a score: a number of microseconds, which Redis may write with an exponent.
pub(crate) fn moment(score: &str) -> Result<Timestamp> {
    if let Ok(micros) = score.parse::<i64>() {
        return Ok(Timestamp::from_micros(micros));
    }
    let micros: f64 = score.parse().map_err(|_| corrupt(format_args!("the score {score:?}")))?;
    #[expect(clippy::cast_possible_truncation, reason = "saturates, as sums of time do")]
    let micros = micros as i64;
    Ok(Timestamp::from_micros(micros))
}

/// Reads a job's number, or what [`member`](crate::keys::member) made of it.
pub(crate) fn job_of(member: &str) -> Result<JobId> {
    let digits = member.trim_start_matches(|letter: char| letter.is_ascii_lowercase());
    let number = digits.parse().map_err(|_| corrupt(format_args!("the member {member:?}")))?;
    Ok(JobId::new(number))
}

pub(crate) fn values(value: Value) -> Result<Vec<Value>> {
    match value {
        Value::Array(values) | Value::Set(values) => Ok(values),
        Value::Map(pairs) => Ok(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect()),
        Value::Nil => Ok(Vec::new()),
        other => Err(corrupt(format_args!("an answer {other:?}"))),
    }
}

pub(crate) fn maybe_bytes(value: Value) -> Result<Option<Vec<u8>>> {
    match value {
        Value::Nil | Value::Boolean(false) => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::SimpleString(text) => Ok(Some(text.into_bytes())),
        Value::Int(number) => Ok(Some(number.to_string().into_bytes())),
        other => Err(corrupt(format_args!("an answer {other:?}"))),
    }
}

pub(crate) fn text(value: Value) -> Result<String> {
    let bytes = maybe_bytes(value)?.unwrap_or_default();
    String::from_utf8(bytes).map_err(|error| corrupt(format_args!("a text: {error}")))
}
