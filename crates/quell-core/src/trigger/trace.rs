//! The trace contexts of triggers, from their callers to the attempts that cover them (R42).
//!
//! Source of the format: [W3C Trace Context](https://www.w3.org/TR/trace-context/), level 1.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, Result};

/// The bytes of a `traceparent`.
const PARENT_BYTES: usize = 55;
/// The most bytes of a `tracestate` that are kept: what the standard asks everyone to pass on.
const MAX_STATE_BYTES: usize = 512;
/// List members longer than this are the first to go, as the standard advises.
const LONG_MEMBER_BYTES: usize = 128;
/// The most list members of a `tracestate`.
const MAX_MEMBERS: usize = 32;

/// A trigger's trace context: the two W3C headers `traceparent` and `tracestate` of the span that
/// triggered.
///
/// ```
/// use quell_core::trigger::trace::TraceContext;
///
/// let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let context = TraceContext::new(parent, Some("vendor=a"))?;
/// assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
/// assert_eq!(context.span_id(), "00f067aa0ba902b7");
/// assert_eq!((context.traceparent(), context.tracestate()), (parent, Some("vendor=a")));
/// assert!(TraceContext::new("00-0-0-00", None).is_err());
/// # Ok::<(), quell_core::Error>(())
/// ```
///
/// It is written as an object of both, and shown as the line that [`Traces`] has of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceContext(Arc<String>);

impl TraceContext {
    /// A context from the values of the headers. A `traceparent` of a later version than 00 becomes
    /// one of version 00. Of a `tracestate` above 512 bytes, whole members are left out: first those
    /// above 128 bytes, then the last ones. One that is not a list of at most 32 members is left out
    /// as a whole.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) where `traceparent` is malformed, or an id of it is all
    /// zeros. The standard asks a receiver to go on without a context then.
    pub fn new(traceparent: &str, tracestate: Option<&str>) -> Result<Self> {
        let wrong = || {
            let shown: String = traceparent.chars().take(64).collect();
            let help = "give 00-TRACE-SPAN-FLAGS in lower-case hexadecimal digits, as W3C Trace Context says";
            Error::invalid("traceparent", format!("{shown:?} is no trace context: {help}"))
        };
        let mut line = parent_of(traceparent).ok_or_else(wrong)?;
        if let Some(state) = tracestate.and_then(state_of) {
            line.push(' ');
            line.push_str(&state);
        }
        Ok(TraceContext(Arc::new(line)))
    }

    /// `00-TRACE-SPAN-FLAGS`: 55 characters.
    #[must_use]
    pub fn traceparent(&self) -> &str {
        self.0.get(..PARENT_BYTES).unwrap_or_default()
    }

    /// What vendors added, if anything.
    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.0.get(PARENT_BYTES..).and_then(|state| state.strip_prefix(' '))
    }

    /// The trace: 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        self.0.get(3..35).unwrap_or_default()
    }

    /// The span that triggered: 16 hexadecimal digits.
    #[must_use]
    pub fn span_id(&self) -> &str {
        self.0.get(36..52).unwrap_or_default()
    }

    /// Reads a line of [`Traces`].
    fn of_line(line: &str) -> Option<Self> {
        let (parent, state) = line.split_once(' ').map_or((line, None), |(p, s)| (p, Some(s)));
        TraceContext::new(parent, state).ok()
    }
}

/// A line of [`Traces`].
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A context as an object.
#[derive(Serialize, Deserialize)]
struct Headers<'t> {
    traceparent: Cow<'t, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tracestate: Option<Cow<'t, str>>,
}

impl Serialize for TraceContext {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tracestate = self.tracestate().map(Cow::Borrowed);
        Headers { traceparent: self.traceparent().into(), tracestate }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TraceContext {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Headers { traceparent, tracestate } = Headers::deserialize(deserializer)?;
        TraceContext::new(&traceparent, tracestate.as_deref()).map_err(serde::de::Error::custom)
    }
}

fn parent_of(text: &str) -> Option<String> {
    let mut parts = text.trim().splitn(5, '-');
    let mut hex = |digits: usize| {
        let is_hex = |part: &&str| {
            part.len() == digits && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        parts.next().filter(is_hex)
    };
    let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    let is_zero = |id: &str| id.bytes().all(|digit| digit == b'0');
    let is_whole = parts.next().is_none() || version != "00";
    if version == "ff" || is_zero(trace) || is_zero(span) || !is_whole {
        return None;
    }
    // What other flags of a later version mean is not known.
    let sampled = u8::from_str_radix(flags, 16).ok()? & 1;
    let flags = if version == "00" { flags.to_owned() } else { format!("{sampled:02x}") };
    Some(format!("00-{trace}-{span}-{flags}"))
}

fn state_of(text: &str) -> Option<String> {
    let members = text.split(',').map(|member| member.trim_matches([' ', '\t']));
    let mut members: Vec<&str> = members.filter(|member| !member.is_empty()).collect();
    let is_member = |member: &&str| {
        let printable = member.bytes().all(|b| matches!(b, b' '..=b'~'));
        printable && member.split_once('=').is_some_and(|(key, _)| !key.is_empty())
    };
    if members.len() > MAX_MEMBERS || !members.iter().all(is_member) {
        return None;
    }
    let is_long = |members: &[&str]| {
        let commas = members.len().saturating_sub(1);
        let bytes: usize = members.iter().map(|member| member.len()).sum();
        bytes.saturating_add(commas) > MAX_STATE_BYTES
    };
    while is_long(&members) {
        match members.iter().rposition(|member| member.len() > LONG_MEMBER_BYTES) {
            Some(long) => drop(members.remove(long)),
            None => drop(members.pop()),
        }
    }
    (!members.is_empty()).then(|| members.join(","))
}

/// Reads a trigger's context, and goes on without one where it is malformed: a trace is no reason to
/// refuse a trigger.
pub(crate) fn lenient<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<TraceContext>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Context(TraceContext),
        Other(serde::de::IgnoredAny),
    }
    Ok(match Given::deserialize(deserializer)? {
        Given::Context(context) => Some(context),
        Given::Other(_) => None,
    })
}

/// The trace contexts that a job keeps: the first 16 of its triggers, in order. One that is the same as
/// that before it is not kept twice, as where a call sends many triggers.
///
/// Stores keep them as text: a context per line, `traceparent` and, after a space, `tracestate`; so at
/// most 9,103 bytes.
///
/// ```
/// use quell_core::trigger::trace::{TraceContext, Traces};
///
/// let mut traces = Traces::default();
/// let parent = |span: u64| format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{span:016x}-01");
/// for span in 1..20 {
///     traces.push(&TraceContext::new(&parent(span), None)?);
/// }
/// assert_eq!(traces.len(), Traces::MAX);
/// assert_eq!(traces.iter().next().map(|it| it.traceparent().to_owned()), Some(parent(1)));
/// # Ok::<(), quell_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Traces(Option<Arc<str>>);

impl Traces {
    /// The most contexts that are kept.
    pub const MAX: usize = 16;

    /// What [`Traces::as_str`] gave; empty text is none.
    #[must_use]
    pub fn from_stored(text: &str) -> Self {
        Traces((!text.is_empty()).then(|| text.into()))
    }

    /// The text that stores keep; none where there is no context.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines().count()
    }

    /// The contexts, in the order of their triggers.
    pub fn iter(&self) -> impl Iterator<Item = TraceContext> + '_ {
        self.lines().filter_map(TraceContext::of_line)
    }

    /// Adds the context of a later trigger, where there is room.
    pub fn push(&mut self, context: &TraceContext) {
        self.push_lines(std::iter::once(context.0.as_str()));
    }

    /// Adds the contexts of later triggers, as far as there is room.
    pub fn append(&mut self, later: &Traces) {
        self.push_lines(later.lines());
    }

    fn push_lines<'l>(&mut self, lines: impl Iterator<Item = &'l str>) {
        let before = self.as_str().unwrap_or_default();
        let mut room = Traces::MAX.saturating_sub(self.len());
        let (mut text, mut last) = (String::new(), before.lines().next_back());
        for line in lines {
            if room == 0 {
                break;
            }
            if last == Some(line) {
                continue;
            }
            if last.is_some() {
                text.push('\n');
            }
            text.push_str(line);
            (last, room) = (Some(line), room.saturating_sub(1));
        }
        if !text.is_empty() {
            self.0 = Some(format!("{before}{text}").into());
        }
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        self.as_str().unwrap_or_default().lines()
    }
}

/// Within its bounds whatever the text: exports come from outside.
impl<'de> Deserialize<'de> for Traces {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Option::<Cow<'de, str>>::deserialize(deserializer)?;
        let mut traces = Traces::default();
        let read = text.iter().flat_map(|text| text.lines()).filter_map(TraceContext::of_line);
        read.for_each(|context| traces.push(&context));
        Ok(traces)
    }
}

impl<'t> FromIterator<&'t TraceContext> for Traces {
    fn from_iter<I: IntoIterator<Item = &'t TraceContext>>(contexts: I) -> Self {
        let mut traces = Traces::default();
        contexts.into_iter().for_each(|context| traces.push(context));
        traces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn parent_after(text: &str) -> Option<String> {
        TraceContext::new(text, None).ok().map(|context| context.traceparent().to_owned())
    }

    fn state_after(text: &str) -> Option<String> {
        TraceContext::new(PARENT, Some(text)).unwrap().tracestate().map(str::to_owned)
    }

    #[test]
    fn r42_a_malformed_traceparent_is_none() {
        let zeros = |id: &str| PARENT.replace(id, &"0".repeat(id.len()));
        let wrong = [
            String::new(),
            PARENT.to_uppercase(),
            PARENT.replace("00-4b", "ff-4b"),
            format!("{PARENT}-x"),
            PARENT.replace("-01", ""),
            PARENT.replace("-01", "-1"),
            zeros("4bf92f3577b34da6a3ce929d0e0e4736"),
            zeros("00f067aa0ba902b7"),
        ];
        for text in wrong {
            assert_eq!(parent_after(&text), None, "{text:?}");
        }
        assert_eq!(parent_after(&format!(" {PARENT} ")).as_deref(), Some(PARENT));
    }

    #[test]
    fn r42_a_later_version_becomes_the_first() {
        let later = PARENT.replace("00-4b", "cc-4b").replace("-01", "-ff-more-of-it");
        assert_eq!(parent_after(&later).as_deref(), Some(PARENT));
    }

    #[test]
    fn r42_a_tracestate_is_kept_by_whole_members() {
        assert_eq!(state_after(" a=1 ,\tb=2,, ").as_deref(), Some("a=1,b=2"));
        for none in ["", ",", "a", "=1", "a=\n", "a=é"] {
            assert_eq!(state_after(none), None, "{none:?}");
        }
        let members = |count: usize| vec!["a=1"; count].join(",");
        assert_eq!(state_after(&members(33)), None);
        assert_eq!(state_after(&members(32)), Some(members(32)));

        let (long, short) = (format!("l={}", "x".repeat(200)), format!("s={}", "y".repeat(98)));
        let given = [&short, &long, &short, &short, &short, &short, &short].map(String::as_str);
        assert_eq!(state_after(&given.join(",")), Some([short.as_str(); 5].join(",")));
    }

    #[test]
    fn r42_text_gives_the_contexts_that_it_was_made_of() {
        let contexts =
            [TraceContext::new(PARENT, Some("a=1 2,b=3")), TraceContext::new(PARENT, None)];
        let contexts = contexts.map(Result::unwrap);
        let traces: Traces = contexts.iter().collect();
        let read = Traces::from_stored(traces.as_str().unwrap());
        assert_eq!(read.iter().collect::<Vec<_>>(), contexts);
        assert_eq!(Traces::from_stored(""), Traces::default());
        let json = serde_json::to_string(&traces).unwrap();
        assert_eq!(serde_json::from_str::<Traces>(&json).unwrap(), traces);
        // What is no context is passed over.
        assert_eq!(Traces::from_stored(&format!("x\n{PARENT}")).iter().count(), 1);
    }

    #[test]
    fn r42_the_first_sixteen_are_kept_and_bounded() {
        let state = vec!["k=v"; 32].join(",");
        let context = |span: u64| {
            let parent = PARENT.replace("00f067aa0ba902b7", &format!("{span:016x}"));
            TraceContext::new(&parent, Some(&state)).unwrap()
        };
        let of = |spans: std::ops::RangeInclusive<u64>| {
            let contexts: Vec<TraceContext> = spans.map(context).collect();
            contexts.iter().collect::<Traces>()
        };
        let mut traces = of(1..=10);
        traces.append(&of(11..=30));
        assert_eq!(traces, of(1..=16));
        let before = traces.clone();
        traces.push(&context(40));
        assert_eq!(traces, before);
        traces = of(1..=3);
        traces.append(&of(3..=4));
        traces.push(&context(4));
        assert_eq!(traces, of(1..=4), "the same context twice in a row is one");
        traces = of(1..=16);
        let largest = Traces::MAX * (PARENT_BYTES + 1 + MAX_STATE_BYTES) + Traces::MAX - 1;
        assert!(traces.as_str().unwrap().len() <= largest && largest == 9_103);
    }

    #[test]
    fn r42_a_malformed_context_does_not_refuse_a_trigger() {
        #[derive(Deserialize)]
        struct Given {
            #[serde(default, deserialize_with = "lenient")]
            trace: Option<TraceContext>,
        }
        let read = |json: &str| serde_json::from_str::<Given>(json).unwrap().trace;
        let given = format!("{{\"trace\": {{\"traceparent\": {PARENT:?}}}}}");
        assert_eq!(read(&given), TraceContext::new(PARENT, None).ok());
        for none in
            ["{}", "{\"trace\": null}", "{\"trace\": 7}", "{\"trace\": {\"traceparent\": \"x\"}}"]
        {
            assert_eq!(read(none), None, "{none}");
        }
    }
}
