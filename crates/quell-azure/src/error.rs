//! What the service's errors mean to a caller.

use quell_core::{Error, ErrorKind, Result};
use quell_portable::Message;

use crate::credentials::Service;
use crate::transport::{Answer, Transport};

/// What caused an error.
pub(crate) type Source = Box<dyn std::error::Error + Send + Sync>;

/// An error of a call that was not made; `what` completes "cannot …".
pub(crate) fn unavailable(what: &str, reason: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("cannot {what}: {reason}"))
}

/// The error of a call that may have been made.
pub(crate) fn in_doubt(what: &str, source: Source) -> Error {
    let message = format!("the outcome is unknown: {what}: {source}");
    Error::new(ErrorKind::UnknownOutcome, message).with_source(source)
}

/// Refuses a message that is longer than a timer takes.
pub(crate) fn check_length(message: &Message, most: usize) -> Result<()> {
    match message.body.len() {
        length if length > most => {
            let text = format!("a message has {length} bytes, the limit is {most}");
            Err(Error::invalid("body", text))
        }
        _ => Ok(()),
    }
}

impl Transport {
    /// The error of a request that the service rejects; `what` completes "cannot …", and `name` is
    /// that of the table or the queue.
    pub(crate) fn rejected(&self, what: &str, name: &str, answer: &Answer) -> Error {
        let code = error_code(answer);
        // Of a queue, `NotFound` means that a lock was lost.
        let (noun, missing) = match self.service() {
            Service::Table => ("table", ErrorKind::NotFound),
            Service::Queue | Service::Bus => ("queue", ErrorKind::Unavailable),
        };
        let (kind, reason) = match (answer.status, code.as_str()) {
            (401 | 403, _) => {
                let remedy = self.remedy();
                let reason = format!("the account rejects the credentials ({code}): {remedy}");
                (ErrorKind::Unavailable, reason)
            }
            (404, "TableNotFound" | "QueueNotFound" | "ResourceNotFound") => {
                let reason =
                    format!("{noun} {name:?} does not exist: create it, or open with `create`");
                (missing, reason)
            }
            (409, "TableBeingDeleted" | "QueueBeingDeleted") => {
                let reason = format!("{noun} {name:?} is being deleted: wait a minute");
                (ErrorKind::Unavailable, reason)
            }
            (413, _)
            | (400, "EntityTooLarge" | "RequestBodyTooLarge" | "PropertyValueTooLarge") => {
                (ErrorKind::Invalid, format!("the request is too large for the service ({code})"))
            }
            (status, _) => (
                ErrorKind::Internal,
                format!("the service rejects a request of Quell ({status} {code})"),
            ),
        };
        Error::new(kind, format!("cannot {what}: {reason}"))
    }
}

/// The code of an error: from its header, else from its body in JSON or XML; empty where it has none.
pub(crate) fn error_code(answer: &Answer) -> String {
    if let Some(code) = answer.header("x-ms-error-code") {
        return code.to_owned();
    }
    let json: Option<serde_json::Value> = serde_json::from_slice(&answer.body).ok();
    let code = json.as_ref().and_then(|json| json.pointer("/odata.error/code")?.as_str());
    if let Some(code) = code {
        return code.to_owned();
    }
    let text = String::from_utf8_lossy(&answer.body);
    let code = ["<Code>", "<code>", "<m:code>"].iter().find_map(|tag| text.split_once(tag));
    let code = code.and_then(|(_, rest)| rest.split('<').next()).unwrap_or_default();
    code.chars().filter(char::is_ascii_alphanumeric).take(64).collect()
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderMap;

    use super::*;

    #[test]
    fn a_code_is_found_in_json_and_in_xml() {
        for (body, code) in [
            (r#"{"odata.error":{"code":"TableNotFound","message":{}}}"#, "TableNotFound"),
            ("<?xml version='1.0'?><error><m:code>Busy</m:code></error>", "Busy"),
            ("<Error><Code>ServerBusy</Code></Error>", "ServerBusy"),
            ("nothing", ""),
        ] {
            let body = body.as_bytes().to_vec();
            let answer = Answer { status: 400, headers: HeaderMap::new(), body };
            assert_eq!(error_code(&answer), code);
        }
    }
}
