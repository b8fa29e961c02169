//! Which documents are encrypted, and in which context each.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use quell_core::envelope::Envelope;
use quell_core::history::{Event, History, Sink};
use quell_core::{
    Batch, EffectName, Error, ErrorKind, Fold, JobId, Key, Limits, NewTrigger, Payload, Result,
    TaskName,
};
use serde_json::value::RawValue;

use super::{Cipher, OpenError, Sealed};

/// How the keys begin that a task's policy derives from payloads (R20).
const DERIVED: &str = "derived-";

/// Encrypts and decrypts what a client gives to a store.
#[derive(Clone, Debug)]
pub(crate) struct Seal(Arc<dyn Cipher>);

/// Why a document stays closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unopened {
    /// The name of its key.
    pub(crate) key: String,
    pub(crate) why: OpenError,
}

impl Unopened {
    /// The same as an error about a document.
    pub(crate) fn error(&self, document: &str) -> Error {
        let key = &self.key;
        let (kind, why) = match self.why {
            OpenError::NoKey => (ErrorKind::Unavailable, "which this process does not have"),
            OpenError::Damaged => (ErrorKind::Corrupt, "and does not open with it"),
        };
        Error::new(kind, format!("{document} was encrypted with the key {key}, {why}"))
    }
}

/// Where a document belongs. It opens there alone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'p> {
    /// The payload of a job; it stays in place through joins, absorption, redrives and exports.
    Payload(&'p TaskName, Option<&'p Key>),
    /// The output of a job.
    Output(JobId),
    /// The result of an effect. An import changes the id of its job.
    Effect(&'p EffectName),
}

impl Place<'_> {
    fn context(self) -> Vec<u8> {
        // No name has a line break.
        match self {
            Place::Payload(task, Some(key)) => format!("payload\n{task}\nkey\n{key}"),
            Place::Payload(task, None) => format!("payload\n{task}\n"),
            Place::Output(job) => format!("output\n{job}"),
            Place::Effect(name) => format!("effect\n{name}"),
        }
        .into_bytes()
    }
}

impl Seal {
    pub(crate) fn new(cipher: Arc<dyn Cipher>) -> Self {
        Seal(cipher)
    }

    /// Whether payloads of this task are encrypted.
    pub(crate) fn encrypts(&self, task: &TaskName) -> bool {
        self.0.encrypts(task)
    }

    /// Whether a stored trigger is as it would be stored now.
    pub(crate) fn is_newest(&self, trigger: &NewTrigger, place: Place<'_>) -> Result<bool> {
        let sealed = Envelope::of(trigger.payload.as_str());
        if !self.encrypts(&trigger.task) {
            return Ok(sealed.is_none());
        }
        let key = self.envelope("null", place)?.key;
        Ok(sealed.is_some_and(|sealed| sealed.key == key))
    }

    /// A document as it is stored.
    pub(crate) fn document(&self, document: &Payload, place: Place<'_>) -> Result<Payload> {
        Ok(self.envelope(document.as_str(), place)?.payload())
    }

    /// The payload of a job as it is stored: each element of an array that a job
    /// collected is a payload. What is encrypted already stays as it is.
    pub(crate) fn folded(
        &self,
        payload: &Payload,
        fold: &Fold,
        task: &TaskName,
        key: Option<&Key>,
    ) -> Result<Payload> {
        if !self.0.encrypts(task) {
            return Ok(payload.clone());
        }
        let place = Place::Payload(task, key);
        let sealed = |document: &str| match Envelope::of(document) {
            Some(sealed) => Ok(sealed),
            None => self.envelope(document, place),
        };
        match serde_json::from_str::<Vec<&RawValue>>(payload.as_str()) {
            Ok(elements) if fold.collects() => {
                let elements = elements
                    .iter()
                    .map(|element| Ok(sealed(element.get())?.payload().as_str().to_owned()));
                let elements = elements.collect::<Result<Vec<String>>>()?;
                Ok(Payload::from_stored(format!("[{}]", elements.join(","))))
            }
            _ => Ok(sealed(payload.as_str())?.payload()),
        }
    }

    /// A trigger as it is stored.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for a window whose payloads a store would
    /// have to look into; else what the cipher says.
    pub(crate) fn trigger(&self, mut trigger: NewTrigger) -> Result<NewTrigger> {
        if !self.0.encrypts(&trigger.task) {
            if Envelope::may_be_in(trigger.payload.as_str()) {
                let message = "payload has `$sealed`, which stands for an encrypted one: choose another \
                               name for the member";
                return Err(Error::invalid("payload", message));
            }
            return Ok(trigger);
        }
        if trigger.keyed.is_some() && matches!(trigger.fold, Fold::Merge | Fold::Accumulate { .. })
        {
            let task = &trigger.task;
            let message = format!(
                "payloads of the task {task} are merged or accumulated, which encrypted ones cannot \
                 be: use `last`, `first` or `collect`, or leave the task out of the encryption"
            );
            return Err(Error::invalid("fold", message));
        }
        let key = trigger.keyed.as_ref().map(|keyed| &keyed.key);
        let mut sealed =
            self.envelope(trigger.payload.as_str(), Place::Payload(&trigger.task, key))?;
        if let Some(idempotency) = &mut trigger.idempotency {
            sealed.fingerprint = Some(self.0.fingerprint(&trigger.payload));
            // A hash of the payload would say what is in it, to one who can guess.
            if idempotency.key.as_str().starts_with(DERIVED) {
                let keyed = self.0.fingerprint(&Payload::encode(idempotency.key.as_str())?);
                idempotency.key = Key::new(format!("{DERIVED}{keyed}"))?;
            }
        }
        trigger.payload = sealed.payload();
        Ok(trigger)
    }

    /// A batch as it is stored.
    ///
    /// # Errors
    /// As for [`trigger`](Self::trigger), and for a batch that is too large then (R5).
    pub(crate) fn batch(&self, batch: Batch) -> Result<Batch> {
        let Batch { triggers, dedup } = batch;
        let sealed: Result<Vec<NewTrigger>> =
            triggers.into_iter().map(|trigger| self.trigger(trigger)).collect();
        let batch = Batch { triggers: sealed?, dedup };
        batch.validate(&Limits { payload_bytes: usize::MAX, batch: usize::MAX })?;
        Ok(batch)
    }

    /// The document that a stored one stands for: itself, where it is not encrypted.
    pub(crate) fn opened(
        &self,
        stored: &Payload,
        place: Place<'_>,
    ) -> std::result::Result<Payload, Unopened> {
        let text = stored.as_str();
        if !Envelope::may_be_in(text) {
            return Ok(stored.clone());
        }
        if let Some(envelope) = Envelope::of(text) {
            return self.open(&envelope, place).map(Payload::from_stored);
        }
        let Ok(elements) = serde_json::from_str::<Vec<&RawValue>>(text) else {
            return Ok(stored.clone());
        };
        let opened = elements.iter().map(|element| match Envelope::of(element.get()) {
            Some(envelope) => self.open(&envelope, place),
            None => Ok(element.get().to_owned()),
        });
        let opened = opened.collect::<std::result::Result<Vec<String>, Unopened>>()?;
        Ok(Payload::from_stored(format!("[{}]", opened.join(","))))
    }

    fn envelope(&self, document: &str, place: Place<'_>) -> Result<Envelope> {
        let Sealed { key, bytes } = self.0.seal(document.as_bytes(), &place.context())?;
        Ok(Envelope { key, data: STANDARD_NO_PAD.encode(bytes), fingerprint: None })
    }

    fn open(&self, envelope: &Envelope, place: Place<'_>) -> std::result::Result<String, Unopened> {
        let unopened = |why| Unopened { key: envelope.key.clone(), why };
        let bytes = STANDARD_NO_PAD.decode(&envelope.data);
        let bytes = bytes.map_err(|_| unopened(OpenError::Damaged))?;
        let sealed = Sealed { key: envelope.key.clone(), bytes };
        let opened = self.0.open(&sealed, &place.context()).map_err(unopened)?;
        String::from_utf8(opened).map_err(|_| unopened(OpenError::Damaged))
    }
}

/// A history of a client that encrypts: it gets no payloads.
#[derive(Debug)]
pub(crate) struct WithoutPayloads(pub(crate) Sink);

impl History for WithoutPayloads {
    fn record(&self, event: &Event) {
        self.0.record(event);
    }
}
