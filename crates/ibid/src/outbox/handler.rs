//! What carries out one kind of Effect, and what it is told and tells.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use ibid_core::effect::StoredEffect;
use ibid_core::response::Response;
use ibid_core::scope::RecordId;
use serde::Deserialize;
use tokio::time::Instant;

/// Carries out Effects of one kind. `T` is the transaction of the worker's [`Database`](ibid_core::sql::Database).
///
/// Write the methods as `async fn`:
///
/// ```
/// use ibid::outbox::{CallOutcome, CallResult, EffectCall, EffectHandler};
///
/// struct Mail;
///
/// impl<T: Send> EffectHandler<T> for Mail {
///     async fn call(&self, call: &EffectCall) -> CallOutcome {
///         let address: String = match call.json() {
///             Ok(address) => address,
///             Err(error) => return CallOutcome::Refused { why: error.to_string() },
///         };
///         // … send it, under `call.downstream_key` …
///         CallOutcome::Made(CallResult { result: address.into(), ..CallResult::default() })
///     }
/// }
/// ```
pub trait EffectHandler<T>: Send + Sync {
    /// Makes the outside call, with no transaction open. What is not certain is [`CallOutcome::Uncertain`]; running out of
    /// time or panicking means the same.
    fn call(&self, call: &EffectCall) -> impl Future<Output = CallOutcome> + Send;

    /// Whether an earlier call, whose outcome nobody saw, was made. Asked only of Effects declared `verified`.
    fn verify(&self, call: &EffectCall) -> impl Future<Output = VerifyOutcome> + Send {
        let _ = call;
        async { VerifyOutcome::Unsure }
    }

    /// What a webhook says was made, in this handler's own words: as `call` or `verify` would have given it. `told` has the
    /// payload's body for a result, and for an answer with the status of its outcome; a decline is an answer too.
    fn on_evidence(&self, call: &EffectCall, told: CallResult) -> CallResult {
        let _ = call;
        told
    }

    /// Writes the business rows that follow from it, in the transaction that ends the Effect: a payment succeeded, failed
    /// or is for a person to look at. It may run more than once; only one of its transactions commits.
    ///
    /// On an error the transaction is undone and run again. If that does not help, the call counts as uncertain with its
    /// result kept; an end that is no success is taken up again once the claim has lapsed.
    fn record(
        &self,
        call: &EffectCall,
        settled: &SettledEffect,
        tx: &mut T,
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = (call, settled, tx);
        async { Ok(()) }
    }
}

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// One call to be made.
#[derive(Clone)]
pub struct EffectCall {
    /// The key for the provider: the same over every try.
    pub downstream_key: String,
    /// What was enqueued.
    pub payload: Bytes,
    /// Which try it is, from 1.
    pub tries: u32,
    /// Whose it is.
    pub tenant: String,
    /// The Record that asked for it.
    pub record: RecordId,
    /// The W3C `traceparent` of the request that caused it, to be sent on: where requests come through the layer, as
    /// `ibid::http::TraceContext` has it, with a span of its own (`next`).
    pub trace: Option<String>,
    /// The Effect's name within the Record.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// What it is kept in order with.
    pub aggregate: Option<String>,
    /// The provider's id from an earlier call whose result could not be recorded.
    pub provider_id: Option<String>,
    /// When it is broken off.
    pub deadline: Instant,
}

impl EffectCall {
    /// The payload of an effect that was made with [`NewEffect::json`](ibid_core::effect::NewEffect::json).
    ///
    /// # Errors
    ///
    /// If the payload is no JSON of this type.
    pub fn json<'p, P: Deserialize<'p>>(&'p self) -> Result<P, serde_json::Error> {
        serde_json::from_slice(&self.payload)
    }

    pub(crate) fn new(effect: &StoredEffect, deadline: Instant) -> EffectCall {
        EffectCall {
            downstream_key: effect.downstream_key.clone(),
            payload: effect.payload.clone(),
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

/// Without payload and key: they are nobody's but the provider's.
impl fmt::Debug for EffectCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EffectCall")
            .field("record", &self.record.short())
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("tries", &self.tries)
            .finish_non_exhaustive()
    }
}

/// What came of a call. The reasons are kept with the Effect and shown to operators, cut to a length: never put
/// credentials or the payload into them.
#[derive(Clone, Debug)]
pub enum CallOutcome {
    /// It was made.
    Made(CallResult),
    /// It certainly had no effect, and may have one later.
    NotMade {
        /// What stood in its way.
        why: String,
        /// The provider's `Retry-After`.
        after: Option<Duration>,
    },
    /// The provider refused for good.
    Refused {
        /// What it said.
        why: String,
    },
    /// It may have been made: a time-out, a reset, an ambiguous status.
    Uncertain {
        /// What hid the result.
        why: String,
    },
    /// As uncertain, and the provider has given it an id: it will say what came of it under that id, by webhook, or when
    /// `verify` asks.
    Accepted {
        /// The provider's own id of what may be done.
        provider_id: String,
    },
}

/// What a call gave.
#[derive(Clone, Debug, Default)]
pub struct CallResult {
    /// Kept with the Effect.
    pub result: Bytes,
    /// The provider's own id of what was done.
    pub provider_id: Option<String>,
    /// The Record's final answer, where the Effect owes it. If it is missing there, the Record becomes `unknown`, for a
    /// person to answer: a made-up answer could never be taken back.
    pub answer: Option<Response>,
}

/// What a look at the provider gave.
#[derive(Clone, Debug)]
pub enum VerifyOutcome {
    /// The call was made.
    Made(CallResult),
    /// It was not.
    NotMade,
    /// Nobody can tell yet.
    Unsure,
}

/// How an Effect ended, for now or for good.
#[derive(Clone, Debug)]
pub enum SettledEffect {
    /// It is done.
    Done(CallResult),
    /// The provider refused, or the tries are used up. An operator may have it made after all.
    Dead {
        /// Why.
        why: String,
    },
    /// Nobody knows whether it was made, and only a person can find out.
    Unknown {
        /// Why.
        why: String,
    },
}
