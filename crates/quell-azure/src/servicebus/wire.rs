//! Messages and the bodies of requests, as Service Bus lays them out.

use std::time::Duration;

use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Data, Message as Wire, MessageAnnotations, MessageId,
    Properties,
};
use fe2o3_amqp::types::primitives::{Array, SimpleValue, Timestamp as WireTime, Uuid, Value};
use quell_core::{Error, ErrorKind, Result, Timestamp};
use quell_portable::{Delivery, Message, Received, Scheduled};
use serde_amqp::to_vec;

/// A lock token: the GUID that names one delivery, in network order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LockToken([u8; 16]);

impl LockToken {
    /// Reads a delivery tag, whose first three fields are little-endian, as .NET lays out a GUID.
    fn from_tag(tag: &[u8]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, rest @ ..] = <[u8; 16]>::try_from(tag).ok()?;
        let mut token = [d, c, b, a, f, e, h, g, 0, 0, 0, 0, 0, 0, 0, 0];
        token[8..].copy_from_slice(&rest);
        Some(LockToken(token))
    }

    /// Reads what [`LockToken::delivery`] wrote.
    fn of(delivery: &Delivery) -> Option<Self> {
        let text = delivery.as_str();
        (text.len() == 32).then_some(())?;
        Some(LockToken(u128::from_str_radix(text, 16).ok()?.to_be_bytes()))
    }

    fn delivery(self) -> Delivery {
        Delivery::new(format!("{:032x}", u128::from_be_bytes(self.0)))
    }

    fn array(self) -> Value {
        Value::Array(Array(vec![Value::Uuid(Uuid::from(self.0))]))
    }
}

/// Encodes a message that is delivered at once.
pub(super) fn encode(message: &Message) -> Wire<Data> {
    let body = Data::from(message.body.clone());
    Wire::builder().properties(properties(id_of(message))).body(body).build()
}

/// A queue with duplicate detection needs an id for each message, also where it has no name.
fn id_of(message: &Message) -> String {
    message.name.clone().unwrap_or_else(|| format!("{:032x}", fastrand::u128(..)))
}

fn properties(id: String) -> Properties {
    Properties::builder().message_id(MessageId::String(id)).build()
}

/// Decodes a delivery; none where its tag is no lock token.
pub(super) fn decode(
    info: &DeliveryInfo,
    message: Wire<Body<Value>>,
) -> Option<(LockToken, Received)> {
    let token = LockToken::from_tag(info.delivery_tag())?;
    let failed = message.header.map_or(0, |header| header.delivery_count);
    let body = match message.body {
        Body::Data(parts) => parts.into_iter().flat_map(|Data(part)| part.into_vec()).collect(),
        Body::Value(AmqpValue(Value::Binary(body))) => body.into_vec(),
        Body::Value(AmqpValue(Value::String(body))) => body.into_bytes(),
        // Quell writes no such message; its reader rejects an empty one.
        Body::Value(_) | Body::Sequence(_) | Body::Empty => Vec::new(),
    };
    let deliveries = failed.saturating_add(1);
    Some((token, Received { body, deliveries, delivery: token.delivery() }))
}

/// The request of `$cbs` that presents a token for `audience`.
pub(super) fn put_token(audience: &str, kind: &str) -> ApplicationProperties {
    ApplicationProperties::builder()
        .insert("operation", "put-token")
        .insert("type", kind)
        .insert("name", audience)
        .build()
}

/// A request of `$management`.
#[derive(Debug)]
pub(super) struct Operation {
    /// Completes "cannot …".
    pub(super) what: &'static str,
    name: &'static str,
    pub(super) body: Value,
    /// The delivery that it is about, if any.
    pub(super) token: Option<LockToken>,
    /// Whether it ends that delivery's lock.
    pub(super) ends_lock: bool,
}

impl Operation {
    fn new(what: &'static str, name: &'static str, body: Value) -> Self {
        Operation { what, name, body, token: None, ends_lock: false }
    }

    /// Stores a message that is delivered at `at`; the answer has its sequence number.
    pub(super) fn schedule(message: &Message, at: Timestamp) -> Result<Self> {
        // A part of a millisecond counts as one: no message is early.
        let millis = at.as_micros().div_euclid(1_000).saturating_add(1);
        let due = WireTime::from_milliseconds(millis);
        let annotations =
            MessageAnnotations::builder().insert("x-opt-scheduled-enqueue-time", due).build();
        let (id, body) = (id_of(message), Data::from(message.body.clone()));
        let sections = [to_vec(&annotations), to_vec(&properties(id.clone())), to_vec(&body)];
        let sections = sections.into_iter().collect::<Result<Vec<_>, _>>().map_err(|error| {
            Error::new(ErrorKind::Internal, "cannot encode a message as AMQP").with_source(error)
        })?;
        let encoded = Value::Binary(sections.concat().into());
        let message = map([("message-id", id.into()), ("message", encoded)]);
        let body = map([("messages", Value::List(vec![message]))]);
        Ok(Operation::new("send a message", "com.microsoft:schedule-message", body))
    }

    /// Removes a message that [`Operation::schedule`] has stored.
    pub(super) fn cancel(scheduled: &Scheduled) -> Result<Self> {
        let what = "cancel a message";
        let number = scheduled.as_str().parse().map_err(|_| of_another_timer(what))?;
        let body = map([("sequence-numbers", Value::Array(Array(vec![Value::Long(number)])))]);
        Ok(Operation::new(what, "com.microsoft:cancel-scheduled-message", body))
    }

    /// Looks at messages, also at those whose time has not come.
    pub(super) fn peek(most: usize) -> Self {
        let most = i32::try_from(most).unwrap_or(i32::MAX);
        let fields =
            [("from-sequence-number", Value::Long(0)), ("message-count", Value::Int(most))];
        Operation::new("look at messages", "com.microsoft:peek-message", map(fields))
    }

    pub(super) fn renew(delivery: &Delivery) -> Result<Self> {
        let what = "renew the lock of a message";
        let token = LockToken::of(delivery).ok_or_else(|| of_another_timer(what))?;
        let body = map([("lock-tokens", token.array())]);
        let operation = Operation::new(what, "com.microsoft:renew-lock", body);
        Ok(Operation { token: Some(token), ..operation })
    }

    /// Completes, abandons or dead-letters a message, as `disposition` says. Only the last one has a
    /// reason.
    pub(super) fn settle(
        what: &'static str,
        delivery: &Delivery,
        disposition: &str,
        reason: Option<&str>,
    ) -> Result<Self> {
        let token = LockToken::of(delivery).ok_or_else(|| of_another_timer(what))?;
        let reason = reason.map(|reason| ("deadletter-reason", reason.into()));
        let fields = [("lock-tokens", token.array()), ("disposition-status", disposition.into())];
        let body = map(fields.into_iter().chain(reason));
        let operation = Operation::new(what, "com.microsoft:update-disposition", body);
        Ok(Operation { token: Some(token), ends_lock: true, ..operation })
    }

    /// The properties of the request, which the service ends after `timeout`.
    pub(super) fn properties(&self, timeout: Duration) -> ApplicationProperties {
        let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        ApplicationProperties::builder()
            .insert("operation", self.name)
            .insert("com.microsoft:server-timeout", SimpleValue::Uint(millis))
            .build()
    }
}

/// What the answer to [`Operation::schedule`] calls the message; none for a duplicate, which the
/// service dropped.
pub(super) fn scheduled(answer: &Value) -> Option<Scheduled> {
    let Value::Map(fields) = answer else { return None };
    let Some(Value::Array(numbers)) = fields.get(&Value::from("sequence-numbers")) else {
        return None;
    };
    match numbers.0.first() {
        Some(Value::Long(number @ 1..)) => Some(Scheduled::new(number.to_string())),
        _ => None,
    }
}

/// The encoded messages of the answer to [`Operation::peek`].
pub(super) fn peeked(answer: &Value) -> Vec<Vec<u8>> {
    let field = |value: &Value, name: &str| match value {
        Value::Map(fields) => fields.get(&Value::from(name)).cloned(),
        _ => None,
    };
    let Some(Value::List(messages)) = field(answer, "messages") else { return Vec::new() };
    let encoded = messages.iter().filter_map(|message| match field(message, "message") {
        Some(Value::Binary(bytes)) => Some(bytes.into_vec()),
        _ => None,
    });
    encoded.collect()
}

fn map(fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let fields = fields.into_iter().map(|(name, value)| (Value::from(name), value));
    Value::Map(fields.collect())
}

fn of_another_timer(what: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("cannot {what}: it belongs to another timer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_token_is_the_guid_of_its_tag() {
        let tag: Vec<u8> = (0..16).collect();
        let token = LockToken::from_tag(&tag).unwrap();
        let delivery = token.delivery();
        assert_eq!(delivery.as_str(), "030201000504070608090a0b0c0d0e0f");
        assert_eq!(LockToken::of(&delivery), Some(token));
        assert_eq!(LockToken::from_tag(&tag[..4]), None);
        assert_eq!(LockToken::of(&Delivery::new("x")), None);
    }
}
