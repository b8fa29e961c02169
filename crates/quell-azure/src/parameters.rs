//! What a URL says behind its `?`.

use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use quell_core::{Error, QueueName, Result};
use quell_portable::{Layout, Spread};
use reqwest::Url;

use crate::connection::endpoint;
use crate::options::refuse;
use crate::timer;

/// What a URL may say.
const PARAMETERS: &str = "connection=VARIABLE, \
    credential=managed-identity|workload-identity|developer, endpoint=URL, create=true|false, \
    timeout_ms=MILLISECONDS, timer=servicebus://HOST/QUEUE|storage-queue://QUEUE|none, \
    timer_connection=VARIABLE, set_timer=true|false, native_dedup=SECONDS, \
    layout=one|queues or shards.QUEUE=COUNT";

/// What stands after the `?` of a URL.
#[derive(Default)]
pub(crate) struct Parameters {
    pub(crate) connection: Option<String>,
    pub(crate) credential: Option<String>,
    pub(crate) timer: Option<timer::Place>,
    pub(crate) timer_connection: Option<String>,
    pub(crate) sets_timer: bool,
    pub(crate) native_dedup: Option<Duration>,
    pub(crate) endpoint: Option<Url>,
    pub(crate) create: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) layout: Layout,
    pub(crate) spread: Spread,
}

impl FromStr for Parameters {
    type Err = Error;

    /// An error names the parameter and never repeats its value, which may be a secret in a wrong
    /// place.
    fn from_str(query: &str) -> Result<Self> {
        let mut read = Parameters { create: true, sets_timer: true, ..Parameters::default() };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| refuse("a parameter has no `=`: give NAME=VALUE&NAME=VALUE…"))?;
            let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
            let wrong = |allowed: &str| Err(refuse(&format!("`{name}`: give {allowed}")));
            match (name, value.as_str()) {
                ("connection" | "timer_connection", "") => {
                    return wrong("the name of an environment variable");
                }
                ("connection", _) => read.connection = Some(value),
                ("credential", _) => read.credential = Some(value),
                ("endpoint", _) => read.endpoint = Some(endpoint(&value)?),
                ("create", "true" | "false") => read.create = value == "true",
                ("set_timer", "true" | "false") => read.sets_timer = value == "true",
                ("create" | "set_timer", _) => return wrong("true or false"),
                ("timeout_ms", text) => match text.parse::<u32>() {
                    Ok(limit) if limit > 0 => {
                        read.timeout = Some(Duration::from_millis(limit.into()));
                    }
                    _ => return wrong("a number of milliseconds above 0"),
                },
                ("native_dedup", text) => match text.parse::<u32>() {
                    Ok(window) if window > 0 => {
                        read.native_dedup = Some(Duration::from_secs(window.into()));
                    }
                    _ => return wrong("the queue's window of duplicate detection in seconds"),
                },
                ("timer", text) => match text.parse() {
                    Ok(place) => read.timer = Some(place),
                    Err(()) => {
                        return wrong("servicebus://HOST/QUEUE, storage-queue://QUEUE or none");
                    }
                },
                ("timer_connection", _) => read.timer_connection = Some(value),
                ("layout", "one") => read.layout = Layout::One,
                ("layout", "queues") => read.layout = Layout::Queues,
                ("layout", _) => return wrong("one or queues"),
                _ if let Some(queue) = name.strip_prefix("shards.") => {
                    let Ok(count) = value.parse() else { return wrong("a whole number") };
                    read.spread.insert(QueueName::new(queue)?, count);
                }
                _ => {
                    return Err(refuse(&format!("{name:?} is not known: use {PARAMETERS}")));
                }
            }
        }
        Ok(read)
    }
}
