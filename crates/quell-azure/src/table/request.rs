//! Requests for entities, and answers to batches: a batch is one request whose parts are requests.

use std::fmt::Write;

use quell_portable::{Change, Condition};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};

use super::entity::encode;
use crate::transport::{Answer, Request};

/// A query answers with the ETag of each entity.
const WITH_ETAGS: &str = "application/json;odata=minimalmetadata";
/// Everything else does not need to.
const PLAIN: &str = "application/json;odata=nometadata";
const JSON: &str = "application/json";

/// The path of an entity.
pub(crate) fn entity_path(table: &str, partition: &str, row: &str) -> String {
    format!("{table}(PartitionKey='{partition}',RowKey='{row}')")
}

fn request(what: &'static str, method: Method, path: String, accept: &str) -> Request {
    let headers = vec![
        ("Accept", accept.to_owned()),
        ("DataServiceVersion", "3.0;NetFx".to_owned()),
        ("MaxDataServiceVersion", "3.0;NetFx".to_owned()),
    ];
    Request { what, method, path, query: Vec::new(), headers, body: String::new() }
}

fn with_body(mut request: Request, kind: &str, body: String) -> Request {
    request.headers.push(("Content-Type", kind.to_owned()));
    Request { body, ..request }
}

/// Reads one entity.
pub(crate) fn read(path: String) -> Request {
    request("read a row", Method::GET, path, PLAIN)
}

/// Reads the first entities that a filter takes, after those of another answer.
pub(crate) fn query(
    table: &str,
    filter: &str,
    top: usize,
    after: &[(&'static str, String)],
) -> Request {
    let mut query = request("read rows", Method::GET, format!("{table}()"), WITH_ETAGS);
    query.query.push(("$top", top.to_string()));
    if !filter.is_empty() {
        query.query.push(("$filter", filter.to_owned()));
    }
    query.query.extend_from_slice(after);
    query
}

/// Where the next page of a query begins, as the service says; empty at the end.
pub(crate) fn continuation(answer: &Answer) -> Vec<(&'static str, String)> {
    ["NextPartitionKey", "NextRowKey"]
        .into_iter()
        .filter_map(|name| {
            let value = answer.header(&format!("x-ms-continuation-{name}"))?;
            Some((name, value.to_owned()))
        })
        .collect()
}

/// Creates a table.
pub(crate) fn create_table(table: &str) -> Request {
    let mut create = request("create the table", Method::POST, "Tables".to_owned(), PLAIN);
    create.headers.push(("Prefer", "return-no-content".to_owned()));
    with_body(create, JSON, format!(r#"{{"TableName":"{table}"}}"#))
}

/// Makes one change.
pub(crate) fn change(table: &str, partition: &str, change: &Change, batch: &str) -> Request {
    let row = change.row.as_str();
    let is_insert = change.condition == Condition::Absent;
    let (method, path) = match (&change.value, is_insert) {
        (None, _) => (Method::DELETE, entity_path(table, partition, row)),
        (Some(_), true) => (Method::POST, table.to_owned()),
        (Some(_), false) => (Method::PUT, entity_path(table, partition, row)),
    };
    let mut write = request("write rows", method, path, PLAIN);
    match &change.condition {
        Condition::Version(version) => {
            write.headers.push(("If-Match", version.as_str().to_owned()));
        }
        Condition::Present => write.headers.push(("If-Match", "*".to_owned())),
        Condition::Absent => write.headers.push(("Prefer", "return-no-content".to_owned())),
        Condition::Any => {}
    }
    match &change.value {
        Some(value) => with_body(write, JSON, encode(partition, row, batch, value)),
        None => write,
    }
}

/// Makes all of these changes or none, as an entity group transaction.
pub(crate) fn transaction(parts: &[Request], url: impl Fn(&str) -> Url, batch: &str) -> Request {
    let mut body = format!(
        "--batch_{batch}\r\nContent-Type: multipart/mixed; boundary=changeset_{batch}\r\n\r\n"
    );
    for part in parts {
        let (method, url) = (&part.method, url(&part.path));
        // Writing to a string cannot fail.
        let _written = write!(
            body,
            "--changeset_{batch}\r\nContent-Type: application/http\r\n\
             Content-Transfer-Encoding: binary\r\n\r\n{method} {url} HTTP/1.1\r\n"
        );
        for (name, value) in &part.headers {
            let _written = write!(body, "{name}: {value}\r\n");
        }
        let _written = write!(body, "\r\n{}\r\n", part.body);
    }
    let _written = write!(body, "--changeset_{batch}--\r\n--batch_{batch}--\r\n");
    let whole = request("write rows", Method::POST, "$batch".to_owned(), PLAIN);
    with_body(whole, &format!("multipart/mixed; boundary=batch_{batch}"), body)
}

/// The answers in the answer to a transaction: one for each change, or that to the one which failed.
pub(crate) fn answers(body: &[u8]) -> Vec<Answer> {
    let mut answers: Vec<Answer> = Vec::new();
    let mut in_body = false;
    for line in String::from_utf8_lossy(body).lines() {
        if let Some(status) = line.strip_prefix("HTTP/1.1 ") {
            let status = status.get(..3).and_then(|status| status.parse().ok()).unwrap_or(0);
            answers.push(Answer { status, headers: HeaderMap::new(), body: Vec::new() });
            in_body = false;
        } else if line.starts_with("--") {
            in_body = false;
        } else if let Some(answer) = answers.last_mut() {
            let header = line.split_once(':').and_then(|(name, value)| {
                let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
                Some((name, HeaderValue::from_str(value.trim()).ok()?))
            });
            match header {
                _ if in_body => answer.body.extend_from_slice(line.as_bytes()),
                Some((name, value)) => drop(answer.headers.insert(name, value)),
                None => in_body = true,
            }
        }
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::error_code;

    #[test]
    fn the_answers_in_an_answer_are_found() {
        let body = "--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c\r\n\
                    Content-Type: application/http\r\n\r\nHTTP/1.1 204 No Content\r\n\
                    ETag: W/\"datetime'2026-11-23T12%3A48%3A12.1Z'\"\r\n\r\n\r\n--c\r\n\
                    Content-Type: application/http\r\n\r\nHTTP/1.1 409 Conflict\r\n\
                    Content-Type: application/json\r\n\r\n\
                    {\"odata.error\":{\"code\":\"EntityAlreadyExists\",\r\n\"message\":{}}}\r\n\
                    --c--\r\n--b--\r\n";
        let found = answers(body.as_bytes());
        let statuses: Vec<u16> = found.iter().map(|answer| answer.status).collect();
        assert_eq!(statuses, [204, 409]);
        assert_eq!(found[0].etag(), Some("W/\"datetime'2026-11-23T12%3A48%3A12.1Z'\""));
        assert_eq!(error_code(&found[1]), "EntityAlreadyExists");
        assert!(answers(b"").is_empty());
    }
}
