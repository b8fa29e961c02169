//! Requests and their answers, which `$cbs` and `$management` send by a link of their own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use fe2o3_amqp::link::{ReceiverAttachError, SenderAttachError};
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Message, MessageId, Outcome, Properties, Rejected,
    SerializableBody,
};
use fe2o3_amqp::types::primitives::{SimpleValue, Value};
use fe2o3_amqp::{Receiver, Sender};
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinSet;

use super::failure::{Failure, Rejection};

/// Requests that wait for an answer, by the number of each.
type Waiting = Arc<StdMutex<HashMap<u64, oneshot::Sender<Answer>>>>;
/// The properties and the body of an answer.
type Answer = (ApplicationProperties, Value);

/// The two links of one node. A task of its own hands each answer to its request; it ends with the links.
pub(super) struct Requests {
    sender: Mutex<Sender>,
    reply_to: String,
    waiting: Waiting,
    next: AtomicU64,
    _answers: JoinSet<()>,
}

/// A request that no longer waits when its call ends.
struct Entry<'r>(&'r Waiting, u64);

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

impl Requests {
    pub(super) async fn attach(
        session: &mut SessionHandle<()>,
        node: &str,
    ) -> Result<Self, Failure> {
        let reply_to = format!("quell-{:016x}", fastrand::u64(..));
        let sender = Sender::attach(session, format!("{reply_to}-requests"), node).await;
        let receiver = Receiver::builder()
            .name(format!("{reply_to}-answers"))
            .source(node)
            .target(reply_to.as_str())
            .attach(session);
        let sender = sender.map_err(sender_refused)?;
        let receiver = receiver.await.map_err(receiver_refused)?;
        let waiting = Waiting::default();
        let mut answers = JoinSet::new();
        answers.spawn(hand_out(receiver, Arc::clone(&waiting)));
        let sender = Mutex::new(sender);
        Ok(Requests { sender, reply_to, waiting, next: AtomicU64::new(0), _answers: answers })
    }

    /// Whether no answer can arrive any more: the task has ended.
    pub(super) fn has_ended(&self) -> bool {
        Arc::strong_count(&self.waiting) == 1
    }

    /// Sends a request and waits for its answer, for as long as the connection lasts.
    pub(super) async fn call(
        &self,
        properties: ApplicationProperties,
        body: Value,
    ) -> Result<Value, Failure> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (answers, answer) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(number, answers);
        let _entry = Entry(&self.waiting, number);
        let message = Message::builder()
            .properties(
                Properties::builder()
                    .message_id(MessageId::String(number.to_string()))
                    .reply_to(self.reply_to.clone())
                    .build(),
            )
            .application_properties(properties)
            .body(AmqpValue(body))
            .build();
        deliver(&self.sender, message).await?;
        let (properties, body) =
            answer.await.map_err(|_| Failure::in_doubt("the link for responses was closed"))?;
        match rejection(&properties) {
            Some(rejection) => Err(Failure::Rejected(rejection)),
            None => Ok(body),
        }
    }
}

/// Sends a message and waits until it is accepted; others are sent meanwhile.
pub(super) async fn deliver<B: SerializableBody>(
    sender: &Mutex<Sender>,
    message: Message<B>,
) -> Result<(), Failure> {
    let sent = sender.lock().await.send_batchable(message).await;
    match sent.map_err(Failure::of_transfer)?.await.map_err(Failure::of_settlement)? {
        Outcome::Accepted(_) => Ok(()),
        Outcome::Rejected(Rejected { error: Some(error) }) => {
            Err(Failure::Rejected((&error).into()))
        }
        outcome => Err(Failure::in_doubt(format!("the outcome is {outcome:?}"))),
    }
}

/// Hands each answer to the request that waits for it, until the link ends.
async fn hand_out(mut receiver: Receiver, waiting: Waiting) {
    while let Ok(delivery) = receiver.recv::<Body<Value>>().await {
        if receiver.accept(&delivery).await.is_err() {
            break;
        }
        let message = delivery.into_message();
        let number = message.properties.and_then(|properties| properties.correlation_id);
        let Some(MessageId::String(number)) = number else { continue };
        let Ok(number) = number.parse() else { continue };
        let request = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        let body = match message.body {
            Body::Value(AmqpValue(body)) => body,
            Body::Data(_) | Body::Sequence(_) | Body::Empty => Value::Null,
        };
        if let Some(request) = request {
            // A call that has ended needs no answer.
            let _ended = request.send((message.application_properties.unwrap_or_default(), body));
        }
    }
    waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Reads an answer's status: `$cbs` and `$management` spell the names in their own ways.
fn rejection(properties: &ApplicationProperties) -> Option<Rejection> {
    let read = |names: [&str; 2]| names.iter().find_map(|name| properties.get(*name));
    let text = |names| match read(names) {
        Some(SimpleValue::String(text)) => text.clone(),
        Some(SimpleValue::Symbol(text)) => text.to_string(),
        _ => String::new(),
    };
    let status = match read(["statusCode", "status-code"]) {
        Some(SimpleValue::Int(status)) => *status,
        _ => 500,
    };
    (!(200..300).contains(&status)).then(|| Rejection {
        status,
        condition: text(["errorCondition", "error-condition"]),
        text: text(["statusDescription", "status-description"]),
    })
}

pub(super) fn sender_refused(error: SenderAttachError) -> Failure {
    match error {
        SenderAttachError::RemoteClosedWithError(error) => Failure::Rejected((&error).into()),
        error => Failure::not_sent(error),
    }
}

pub(super) fn receiver_refused(error: ReceiverAttachError) -> Failure {
    match error {
        ReceiverAttachError::RemoteClosedWithError(error) => Failure::Rejected((&error).into()),
        error => Failure::not_sent(error),
    }
}
