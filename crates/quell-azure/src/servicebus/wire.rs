//! Messages and the bodies of requests, as Service Bus lays them out.

use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Data, Message as Wire, MessageAnnotations, MessageId,
    Properties,
};
use fe2o3_amqp::types::primitives::{
    Array, OrderedMap, SimpleValue, Timestamp as WireTime, Uuid, Value,
};
use quell_core::Timestamp;
use quell_portable::{Delivery, Message, Received};

use super::Operation;

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
    pub(super) fn of(delivery: &Delivery) -> Option<Self> {
        let text = delivery.as_str();
        (text.len() == 32).then_some(())?;
        Some(LockToken(u128::from_str_radix(text, 16).ok()?.to_be_bytes()))
    }

    fn delivery(self) -> Delivery {
        Delivery::new(format!("{:032x}", u128::from_be_bytes(self.0)))
    }
}

/// Encodes a message that is delivered at `at`, or at once where the time has come.
pub(super) fn encode(message: &Message, at: Option<Timestamp>) -> Wire<Data> {
    // A part of a millisecond counts as one: no message is early.
    let millis = |at: Timestamp| at.as_micros().div_euclid(1_000).saturating_add(1);
    let annotations = at.map(|at| {
        let due = WireTime::from_milliseconds(millis(at));
        MessageAnnotations::builder().insert("x-opt-scheduled-enqueue-time", due).build()
    });
    // A queue with duplicate detection needs a name for each message.
    let name = message.name.clone().unwrap_or_else(|| format!("{:032x}", fastrand::u128(..)));
    Wire::builder()
        .message_annotations(annotations)
        .properties(Properties::builder().message_id(MessageId::String(name)).build())
        .body(Data::from(message.body.clone()))
        .build()
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

/// The request of `$management` for an operation on one delivery.
pub(super) fn manage(
    operation: &Operation,
    token: LockToken,
    timeout_ms: u32,
) -> (ApplicationProperties, Value) {
    let tokens = Value::Array(Array(vec![Value::Uuid(Uuid::from(token.0))]));
    let mut body = OrderedMap::new();
    let mut set = |name: &str, value: Value| body.insert(Value::String(name.to_owned()), value);
    set("lock-tokens", tokens);
    let name = match operation {
        Operation::Renew => "com.microsoft:renew-lock",
        Operation::Complete | Operation::Abandon | Operation::DeadLetter(_) => {
            "com.microsoft:update-disposition"
        }
    };
    let status = match operation {
        Operation::Renew => None,
        Operation::Complete => Some("completed"),
        Operation::Abandon => Some("abandoned"),
        Operation::DeadLetter(reason) => {
            set("deadletter-reason", Value::String(reason.clone()));
            Some("suspended")
        }
    };
    if let Some(status) = status {
        set("disposition-status", Value::String(status.to_owned()));
    }
    let properties = ApplicationProperties::builder()
        .insert("operation", name)
        .insert("com.microsoft:server-timeout", SimpleValue::Uint(timeout_ms))
        .build();
    (properties, Value::Map(body))
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
