//! One connection with its links: a sender, a receiver, `$management` and `$cbs`.
//!
//! It is replaced as a whole when any part of it fails, and never repaired.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::link::{CreditMode, RecvError};
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::definitions::{ReceiverSettleMode, SenderSettleMode};
use fe2o3_amqp::types::messaging::{Body, Data, Message as Wire};
use fe2o3_amqp::types::primitives::Value;
use fe2o3_amqp::{Connection, Receiver, ReceiverDisposer, Sender, Session};
use quell_portable::Received;
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::failure::Failure;
use super::options::ServiceBusOptions;
use super::requests::{Requests, deliver, receiver_refused, sender_refused};
use super::wire::{LockToken, Operation, decode, put_token};
use crate::error::Source;

/// A connection on which nothing arrives for so long is closed.
const IDLE_MS: u32 = 60_000;
/// The most deliveries whose lock ended before they were settled. With more, the connection is replaced.
const MOST_OPEN: usize = 4_096;
/// The shortest and the longest time that a receiver waits for messages in flight.
const LINGER: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

pub(super) struct Live {
    sender: Mutex<Sender>,
    receiver: Mutex<Receiver>,
    disposer: ReceiverDisposer,
    /// The link's own record of each delivery that no call has settled.
    open: StdMutex<HashMap<LockToken, DeliveryInfo>>,
    management: Requests,
    tokens: Requests,
    /// When to present the next token; held while one is presented.
    renew_at: Mutex<Option<Instant>>,
    linger: Duration,
    has_failed: AtomicBool,
    // In this order: each ends when it is dropped.
    session: SessionHandle<()>,
    connection: ConnectionHandle<()>,
}

impl Live {
    /// Opens a connection and its links, by a token.
    pub(super) async fn connect(options: &ServiceBusOptions) -> Result<Self, Failure> {
        let mut connection = dial(options).await.map_err(Failure::NotSent)?;
        let mut session = Session::begin(&mut connection).await.map_err(Failure::not_sent)?;
        let tokens = Requests::attach(&mut session, "$cbs").await?;
        let began = Instant::now();
        let renew_after = present(&tokens, options).await?;
        // What a round trip takes, and more: the service checks two tokens meanwhile.
        let linger = (began.elapsed() * 2).clamp(LINGER.0, LINGER.1);
        let name = |role| format!("quell-{role}-{:016x}", fastrand::u64(..));
        let queue = options.queue.as_str();
        let sender = Sender::builder()
            .name(name("sender"))
            .target(queue)
            .sender_settle_mode(SenderSettleMode::Unsettled)
            .attach(&mut session);
        let sender = sender.await.map_err(sender_refused)?;
        let receiver = Receiver::builder()
            .name(name("receiver"))
            .source(queue)
            .sender_settle_mode(SenderSettleMode::Unsettled)
            .receiver_settle_mode(ReceiverSettleMode::Second)
            .credit_mode(CreditMode::Manual)
            .attach(&mut session);
        let receiver = receiver.await.map_err(receiver_refused)?;
        let management = Requests::attach(&mut session, &format!("{queue}/$management")).await?;
        Ok(Live {
            sender: Mutex::new(sender),
            disposer: receiver.disposer(),
            receiver: Mutex::new(receiver),
            open: StdMutex::default(),
            management,
            tokens,
            renew_at: Mutex::new(began.checked_add(renew_after)),
            linger,
            has_failed: AtomicBool::new(false),
            session,
            connection,
        })
    }

    /// Lets the next call replace it.
    pub(super) fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Whether it must be replaced.
    pub(super) fn has_ended(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
            || self.connection.is_closed()
            || self.session.is_ended()
            || self.management.has_ended()
            || self.tokens.has_ended()
            || self.open.lock().unwrap_or_else(PoisonError::into_inner).len() > MOST_OPEN
    }

    /// Presents the next token where it is time; how long until the one after that.
    pub(super) async fn renew(&self, options: &ServiceBusOptions) -> Result<Duration, Failure> {
        let mut renew_at = self.renew_at.lock().await;
        let Some(at) = *renew_at else { return Ok(Duration::MAX) };
        let now = Instant::now();
        if let Some(left) = at.checked_duration_since(now) {
            return Ok(left);
        }
        let renew_after = present(&self.tokens, options).await?;
        *renew_at = now.checked_add(renew_after);
        Ok(renew_after)
    }

    pub(super) async fn send(&self, message: Wire<Data>) -> Result<(), Failure> {
        deliver(&self.sender, message).await
    }

    /// Takes at most `most` messages, waiting for the first; none where another call receives all the
    /// while. Dropping it may leave messages locked, which are delivered again.
    pub(super) async fn receive(
        &self,
        most: u32,
        wait: Duration,
    ) -> Result<Vec<Received>, Failure> {
        let began = Instant::now();
        let Ok(mut receiver) = timeout(wait, self.receiver.lock()).await else {
            return Ok(Vec::new());
        };
        receiver.set_credit(most).await.map_err(Failure::not_sent)?;
        let mut found = Vec::new();
        let left = wait.saturating_sub(began.elapsed());
        self.take(&mut receiver, left, &mut found).await?;
        if found.len() < most as usize {
            // The service sends what it has and forgets the rest of the credit. Its answer cannot be
            // awaited with this crate: a message that is later than this is taken by the next call.
            receiver.drain().await.map_err(Failure::not_sent)?;
            while found.len() < most as usize
                && self.take(&mut receiver, self.linger, &mut found).await?
            {}
        }
        Ok(found)
    }

    /// Takes one message, if one comes within `wait`.
    async fn take(
        &self,
        receiver: &mut Receiver,
        wait: Duration,
        found: &mut Vec<Received>,
    ) -> Result<bool, Failure> {
        let Ok(delivery) = timeout(wait, receiver.recv::<Body<Value>>()).await else {
            return Ok(false);
        };
        let delivery = delivery.map_err(|error: RecvError| Failure::not_sent(error))?;
        let (info, message) = delivery.into_parts();
        let (token, received) = decode(&info, message)
            .ok_or_else(|| Failure::not_sent("a delivery's tag is no lock token"))?;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(token, info);
        found.push(received);
        Ok(true)
    }

    /// Sends a request to `$management`: the service answers whether a lock still held, also for
    /// deliveries of connections before this one. The crate hides the answer to a disposition of the
    /// link.
    pub(super) async fn manage(
        &self,
        operation: &Operation,
        timeout: Duration,
    ) -> Result<Value, Failure> {
        let body = operation.body.clone();
        let result = self.management.call(operation.properties(timeout), body).await;
        let has_ended = match &result {
            Ok(_) => operation.ends_lock,
            Err(Failure::Rejected(rejection)) => rejection.is_gone(),
            Err(_) => false,
        };
        if let (Some(token), true) = (operation.token, has_ended) {
            self.close(token).await;
        }
        result
    }

    /// Ends the link's own record of a delivery whose lock has ended: the service ignores the rest.
    async fn close(&self, token: LockToken) {
        let info = self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&token);
        if let Some(info) = info {
            // A link that has failed has no records.
            let _failed = self.disposer.release(info).await;
        }
    }
}

/// Presents tokens for the queue and for its management; how long until the next ones.
async fn present(requests: &Requests, options: &ServiceBusOptions) -> Result<Duration, Failure> {
    let queue = format!("amqp://{}/{}", options.host, options.queue);
    let mut renew_after = Duration::MAX;
    for audience in [queue.clone(), format!("{queue}/$management")] {
        let token = options.token(&audience).await.map_err(Failure::NoToken)?;
        let body = Value::String(token.text.expose().to_owned());
        match requests.call(put_token(&audience, token.kind), body).await {
            // Signed by a clock that is late.
            Err(Failure::Rejected(rejection))
                if rejection.is_expired() && options.last_longer() =>
            {
                return Box::pin(present(requests, options)).await;
            }
            presented => presented?,
        };
        renew_after = token.renew_after;
    }
    Ok(renew_after)
}

async fn dial(options: &ServiceBusOptions) -> Result<ConnectionHandle<()>, Source> {
    let stream = TcpStream::connect((options.host.as_str(), options.port)).await?;
    stream.set_nodelay(true)?;
    let builder = Connection::builder()
        .container_id(format!("quell-{:016x}", fastrand::u64(..)))
        .scheme("amqp")
        .hostname(options.host.as_str())
        .sasl_hostname(options.host.as_str())
        .sasl_profile(SaslProfile::Anonymous)
        .idle_time_out(IDLE_MS);
    if options.is_plain {
        return Ok(builder.open_with_stream(stream).await?);
    }
    // The provider is named here: a process may have several, and none by default.
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_platform_verifier()?
        .with_no_client_auth();
    let name = ServerName::try_from(options.host.clone())?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    Ok(builder.open_with_stream(stream).await?)
}
