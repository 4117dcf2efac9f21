//! The handler trait for one kind of effect, with its input and output types.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use ibid_core::effect::{StoredEffect, downstream_key};
use ibid_core::record::Nonce;
use ibid_core::response::Response;
use ibid_core::scope::{RecordId, Tenant};
use tokio::time::Instant;

use super::payload::{self, EffectPayload, PayloadError, RawPayload};

/// Executes effects of one kind. `T` is the transaction type of the worker's [`Database`](ibid_core::sql::Database), such as
/// `SqlxPostgresTx` for `SqlxPostgres`. A handler that writes no rows can be generic in it.
///
/// Write the methods as `async fn`:
///
/// ```
/// use ibid::outbox::{CallOutcome, CallResult, EffectCall, EffectHandler};
///
/// #[derive(serde::Deserialize)]
/// struct Letter {
///     address: String,
/// }
///
/// struct Mail;
///
/// impl<T: Send> EffectHandler<T> for Mail {
///     type Payload = Letter;
///
///     async fn call(&self, call: &EffectCall<Letter>) -> CallOutcome {
///         let address = call.payload.address.clone();
///         // … send it, under `call.downstream_key` …
///         CallOutcome::Made(CallResult::default().with(|made| made.result = address.into()))
///     }
/// }
/// ```
///
/// # A payload that can't be parsed
///
/// None of the methods can run then, and no call is made. An effect whose call is due becomes dead, with the reason; one that
/// has to be verified is `unknown` once its tries are used up. Your rows stay as they are. If the result of an earlier call is
/// known, from a webhook or because it could not be recorded, ibid keeps it until a worker can parse the payload and record it.
pub trait EffectHandler<T>: Send + Sync {
    /// Type of the payload: one that implements [`Deserialize`](serde::Deserialize), or [`RawPayload`] for bytes.
    type Payload: EffectPayload;

    /// Makes the call. No transaction is open.
    ///
    /// Return [`CallOutcome::Uncertain`] unless you know the result. A timeout or a panic counts as `Uncertain` too.
    fn call(&self, call: &EffectCall<Self::Payload>) -> impl Future<Output = CallOutcome> + Send;

    /// Asks the provider whether an earlier call with an unknown outcome was made. The worker calls it only for effects that
    /// are declared `verified`.
    fn verify(&self, call: &EffectCall<Self::Payload>) -> impl Future<Output = VerifyOutcome> + Send {
        let _ = call;
        async { VerifyOutcome::Unsure }
    }

    /// Converts the result that a webhook reports into the form that `call` and `verify` return.
    ///
    /// `told` holds the body of the webhook's payload as `result`. Its `response` has the same body, and the status of
    /// the reported outcome. A decline is a response too.
    fn on_evidence(&self, call: &EffectCall<Self::Payload>, told: CallResult) -> CallResult {
        let _ = call;
        told
    }

    /// Writes your rows in the transaction that settles the effect: a payment succeeded, failed, or needs an operator. It
    /// may run more than once, but only one of its transactions commits.
    ///
    /// On an error the transaction is rolled back and run again until the lease ends. If it still fails, the result of a
    /// call that was made is stored with the effect. The claim lapses, and the next worker records the stored result, or
    /// handles the lapse if there is none.
    fn record(
        &self,
        call: &EffectCall<Self::Payload>,
        settled: &SettledEffect,
        tx: &mut T,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (call, settled, tx);
        async { Ok(()) }
    }
}

/// Any error, boxed and sendable.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One call to be made, with its payload.
#[derive(Clone)]
#[non_exhaustive]
pub struct EffectCall<P = RawPayload> {
    /// The key for the provider, the same for every try.
    pub downstream_key: String,
    /// The payload that was enqueued.
    pub payload: P,
    /// Number of this try, from 1.
    pub tries: u32,
    /// Tenant that the effect belongs to.
    pub tenant: String,
    /// The record that enqueued the effect.
    pub record: RecordId,
    /// The W3C `traceparent` of the request that enqueued the effect. Send it to the provider with a new span id: behind
    /// the layer, `ibid::http::TraceContext` parses it, and its `next` makes the new span.
    pub trace: Option<String>,
    /// Name of the effect within its record.
    pub name: String,
    /// Kind of the effect, which selects the handler.
    pub kind: String,
    /// Effects with the same aggregate run one after the other, in commit order.
    pub aggregate: Option<String>,
    /// The provider's id from an earlier call whose result could not be recorded.
    pub provider_id: Option<String>,
    /// Instant at which the worker cancels the call.
    pub deadline: Instant,
}

impl<P> EffectCall<P> {
    /// Creates a call, to test a handler without a worker: the first try of an effect of the only tenant, with a minute to go.
    /// Set what else the handler looks at by [`with`](EffectCall::with).
    pub fn new(kind: impl Into<String>, payload: P) -> EffectCall<P> {
        let kind = kind.into();
        let record = RecordId::from_bytes([0; RecordId::LEN]);
        EffectCall {
            downstream_key: downstream_key(&record, Nonce(0), &kind),
            payload,
            tries: 1,
            tenant: Tenant::only().as_str().to_owned(),
            record,
            trace: None,
            name: kind.clone(),
            kind,
            aggregate: None,
            provider_id: None,
            deadline: Instant::now() + TEST_TIME,
        }
    }

    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut EffectCall<P>)) -> EffectCall<P> {
        change(&mut self);
        self
    }
}

impl EffectCall {
    /// Parses the payload into the handler's type.
    pub(crate) fn parse<P: EffectPayload>(&self) -> Result<EffectCall<P>, PayloadError> {
        let payload = payload::parse(&self.payload)?;
        let EffectCall { downstream_key, tenant, trace, name, kind, aggregate, provider_id, .. } =
            self.clone();
        Ok(EffectCall {
            downstream_key,
            payload,
            tries: self.tries,
            tenant,
            record: self.record,
            trace,
            name,
            kind,
            aggregate,
            provider_id,
            deadline: self.deadline,
        })
    }

    pub(crate) fn of(effect: &StoredEffect, deadline: Instant) -> EffectCall {
        EffectCall {
            downstream_key: effect.downstream_key.clone(),
            payload: RawPayload(effect.payload.clone()),
            tries: effect.tries,
            tenant: effect.tenant.clone(),
            record: effect.record,
            trace: effect.trace.clone(),
            name: effect.name.clone(),
            kind: effect.kind.clone(),
            aggregate: effect.aggregate.clone(),
            provider_id: effect.provider_id.clone(),
            deadline,
        }
    }
}

/// Omits payload and key, because only the provider may see them.
impl<P> fmt::Debug for EffectCall<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EffectCall")
            .field("record", &self.record.short())
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("tries", &self.tries)
            .finish_non_exhaustive()
    }
}

/// Outcome of a call. The reasons are stored with the effect, cut to 1 KiB, and shown to operators: never put credentials
/// or the payload into them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CallOutcome {
    /// The call was made.
    Made(CallResult),
    /// The call certainly had no effect. A later try may succeed.
    NotMade {
        /// Reason that the call was not made.
        why: String,
        /// The provider's `Retry-After`, if it sent one.
        after: Option<Duration>,
    },
    /// The provider refused the call permanently.
    Refused {
        /// Reason that the provider gave.
        why: String,
    },
    /// The call may have been made: a timeout, a connection reset, an ambiguous status.
    Uncertain {
        /// Reason that the result is unknown.
        why: String,
    },
    /// Like [`Uncertain`](CallOutcome::Uncertain), but the provider has returned an id. It reports the result under that id,
    /// by webhook or when `verify` asks.
    Accepted {
        /// The provider's id of the operation.
        provider_id: String,
    },
}

/// Result of a call that was made.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CallResult {
    /// Bytes that are stored with the effect.
    pub result: Bytes,
    /// The provider's id of the operation.
    pub provider_id: Option<String>,
    /// The record's final response, if the effect owes it. If the effect owes it and this is `None`, the record becomes
    /// `unknown` and needs an operator: an invented response could never be taken back.
    pub response: Option<Response>,
}

impl CallResult {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut CallResult)) -> CallResult {
        change(&mut self);
        self
    }
}

/// Result of [`EffectHandler::verify`], which asks the provider about an earlier call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum VerifyOutcome {
    /// The call was made.
    Made(CallResult),
    /// The call was not made.
    NotMade,
    /// The provider cannot tell yet.
    Unsure,
}

/// A settled effect, as [`EffectHandler::record`] gets it. An operator can still change `Dead` and `Unknown`.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a handler that misses a case would lose its rows")]
pub enum SettledEffect {
    /// The call was made.
    Done(CallResult),
    /// The provider refused, or the tries are used up. An operator may retry the effect.
    Dead {
        /// Reason of the last failure.
        why: String,
    },
    /// It is not known whether the call was made. An operator or a webhook has to settle it.
    Unknown {
        /// Reason that the outcome is unknown.
        why: String,
    },
}

/// Time that is left for a call which a test creates: as long as the default lease.
const TEST_TIME: Duration = Duration::from_secs(60);
