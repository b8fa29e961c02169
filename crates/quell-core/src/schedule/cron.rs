//! Cron expressions in a time zone, as moments of store time (R36).
//!
//! The calendar is croner's: which dates and times of day an expression names. What the zone makes
//! of them is decided here, because days on which clocks change need one short rule: see
//! [`Cron`].

use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use serde::{Deserialize, Serialize};

use crate::{Error, Result, Timestamp};

/// The longest expression, in bytes.
const MAX_EXPRESSION_BYTES: usize = 256;

/// A cron expression in a time zone.
///
/// Five fields (minute, hour, day of month, month, day of week), or six with seconds before them.
/// Where both days are restricted, either may match, as in every crontab.
///
/// When clocks change, an expression that names hours fires as often as it names them: in an hour
/// that comes twice the first time round, and for times that are skipped once, at the moment the
/// clock jumped. An expression for every hour goes with the clock on the wall: an hour that comes
/// twice has its ticks twice, and one that is skipped has none.
///
/// ```
/// use quell_core::Timestamp;
/// use quell_core::schedule::Cron;
///
/// let cron = Cron::new("30 2 * * *", "Europe/Berlin")?;
/// let winter = Timestamp::from_secs(1_774_656_000); // 2026-03-28 00:00 UTC
/// let first = cron.next(winter).unwrap();
/// assert_eq!(first.to_string(), "2026-03-28T01:30:00.000000Z");
/// // On the 29th there is no 02:30: the clock jumps from 02:00 to 03:00.
/// assert_eq!(cron.next(first).unwrap().to_string(), "2026-03-29T01:00:00.000000Z");
/// # Ok::<(), quell_core::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Cron {
    expression: Arc<str>,
    zone: Arc<str>,
    calendar: croner::Cron,
    tz: TimeZone,
    /// Whether it is for every hour of the day.
    every_hour: bool,
}

/// A [`Cron`] as people write it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    expression: String,
    #[serde(default = "utc")]
    zone: String,
}

fn utc() -> String {
    "UTC".to_owned()
}

impl Cron {
    /// Reads an expression, in the zone of this IANA name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names `cron` or `zone` (R40).
    pub fn new(expression: impl AsRef<str>, zone: impl AsRef<str>) -> Result<Self> {
        let expression = expression.as_ref().trim();
        let calendar = parse(expression)?;
        let tz = time_zone(zone.as_ref())?;
        let every_hour = (0..24).all(|hour| matches!(calendar.pattern.hour_match(hour), Ok(true)));
        let zone = tz.iana_name().unwrap_or(zone.as_ref()).into();
        let cron = Cron { expression: expression.into(), zone, calendar, tz, every_hour };
        if cron.next(Timestamp::from_secs(0)).is_none() {
            let message = format!("cron expression {expression:?} names a date that never comes");
            return Err(Error::invalid("cron", message));
        }
        Ok(cron)
    }

    /// The expression.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// The zone's IANA name.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// The first tick after a moment.
    #[must_use]
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.next_moment(to_jiff(after)?).map(from_jiff)
    }

    /// The last tick up to a moment.
    #[must_use]
    pub fn latest(&self, until: Timestamp) -> Option<Timestamp> {
        let until = to_jiff(until)?;
        let mut civil = self.tz.to_datetime(until);
        let mut inclusive = true;
        let mut latest = loop {
            civil = self.calendar.find_previous_occurrence(&civil, inclusive).ok()?;
            inclusive = false;
            if let Some(moment) = self.moment(civil) {
                break moment;
            }
        };
        // While an hour comes the second time, later readings of its clock have passed already.
        while let Some(next) = self.next_moment(latest).filter(|next| *next <= until) {
            latest = next;
        }
        Some(from_jiff(latest))
    }

    fn next_moment(&self, after: jiff::Timestamp) -> Option<jiff::Timestamp> {
        if self.every_hour { self.next_shown(after) } else { self.next_named(after) }
    }

    /// The next time that a clock on the wall shows what the expression says.
    fn next_shown(&self, after: jiff::Timestamp) -> Option<jiff::Timestamp> {
        let (mut from, mut inclusive) = (after, false);
        loop {
            let offset = self.tz.to_offset(from);
            let civil = offset.to_datetime(from);
            let civil = self.calendar.find_next_occurrence(&civil, inclusive).ok()?;
            let moment = offset.to_timestamp(civil).ok()?;
            match self.tz.following(from).next().map(|change| change.timestamp()) {
                Some(change) if change <= moment => (from, inclusive) = (change, true),
                Some(_) | None => return Some(moment),
            }
        }
    }

    /// The next time that the expression names; each comes once.
    fn next_named(&self, after: jiff::Timestamp) -> Option<jiff::Timestamp> {
        let mut civil = self.tz.to_datetime(after);
        loop {
            civil = self.calendar.find_next_occurrence(&civil, false).ok()?;
            let moment = self.moment(civil)?;
            if moment > after {
                return Some(moment);
            }
        }
    }

    /// When a reading of the clock comes, for the first time; none where it is skipped and nothing
    /// fires in its stead.
    fn moment(&self, civil: DateTime) -> Option<jiff::Timestamp> {
        let ambiguous = self.tz.to_ambiguous_timestamp(civil);
        match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => {
                ambiguous.earlier().ok()
            }
            AmbiguousOffset::Gap { .. } if self.every_hour => None,
            AmbiguousOffset::Gap { .. } => {
                let beyond = ambiguous.later().ok()?;
                let until = beyond.checked_add(jiff::SignedDuration::from_nanos(1)).ok()?;
                self.tz.preceding(until).next().map(|change| change.timestamp())
            }
        }
    }
}

fn parse(expression: &str) -> Result<croner::Cron> {
    let shown: String = expression.chars().take(64).collect();
    if expression.len() > MAX_EXPRESSION_BYTES {
        let message = format!("cron expression has over {MAX_EXPRESSION_BYTES} bytes: shorten it");
        return Err(Error::invalid("cron", message));
    }
    let fields = expression.split_whitespace().count();
    if !(5..=6).contains(&fields) {
        let message = format!(
            "cron expression {shown:?} has {fields} fields: give minute, hour, day of month, month \
             and day of week, with seconds before them if you like"
        );
        return Err(Error::invalid("cron", message));
    }
    // The parser takes an empty item for nothing at all, and would look for it for a long time.
    let mut items = expression.split_whitespace().flat_map(|field| field.split(','));
    if items.any(str::is_empty) {
        let message = format!("cron expression {shown:?} has a comma with nothing beside it");
        return Err(Error::invalid("cron", message));
    }
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    parser
        .parse(expression)
        .map_err(|error| Error::invalid("cron", format!("cron expression {shown:?}: {error}")))
}

fn time_zone(name: &str) -> Result<TimeZone> {
    static BUNDLED: OnceLock<TimeZoneDatabase> = OnceLock::new();
    BUNDLED.get_or_init(TimeZoneDatabase::bundled).get(name).map_err(|_| {
        let shown: String = name.chars().take(64).collect();
        let message =
            format!("zone {shown:?} is not known: give an IANA name such as UTC or Europe/Berlin");
        Error::invalid("zone", message)
    })
}

fn to_jiff(moment: Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_microsecond(moment.as_micros()).ok()
}

fn from_jiff(moment: jiff::Timestamp) -> Timestamp {
    Timestamp::from_micros(moment.as_microsecond())
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        self.expression == other.expression && self.zone == other.zone
    }
}

impl Eq for Cron {}

impl Hash for Cron {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.expression, &self.zone).hash(state);
    }
}

impl TryFrom<Written> for Cron {
    type Error = Error;

    fn try_from(written: Written) -> Result<Self> {
        Cron::new(written.expression, written.zone)
    }
}

impl From<Cron> for Written {
    fn from(cron: Cron) -> Self {
        Written { expression: cron.expression.to_string(), zone: cron.zone.to_string() }
    }
}

#[cfg(test)]
#[path = "cron_tests.rs"]
mod tests;
