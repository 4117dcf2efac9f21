//! The outbox handler: charges a payment after its transaction has committed.
//!
//! A payment becomes `succeeded` or `failed` only when that is certain. If the effect ends without a certain result (dead
//! or unknown), the payment stays `pending`, because the money may have been taken, and an operator has to look at it. If
//! the operator retries the effect (`ibid effects retry`), its result ends the payment in the same way.

use std::ops::DerefMut;
use std::time::Duration;

use ibid::http::TraceContext;
use ibid::outbox::{
    BoxError, CallOutcome, CallResult, EffectCall, EffectHandler, EffectRules, NewEffect, Safety,
    SettledEffect, VerifyOutcome,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::db::{SqlValue, Statements};
use crate::processor::{Charge, ChargeOutcome, ChargeRequest, ProcessorClient};

/// Handling of a charge whose response was lost. Choose it by what the processor can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InDoubt {
    /// Repeat the call: the processor deduplicates by our key.
    Repeat,
    /// Look the charge up by our key before another call: the processor does not deduplicate, but can be queried.
    Verify {
        /// Longest time that a call may be in flight. A lookup that finds no charge before this time proves nothing.
        settle: Duration,
    },
    /// Wait for the processor's webhook or an operator: the processor can do neither.
    Wait,
}

/// The effect that charges a payment, as it is stored in the outbox.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChargePayment {
    /// Id of the payment row.
    pub payment_id: String,
    /// Body of the call, fixed when the payment commits: every try sends the same.
    pub request: ChargeRequest,
}

impl ChargePayment {
    /// The kind of effect that [`Charger`] handles.
    pub const KIND: &str = "charge";

    /// Returns the effect for the outbox.
    pub fn effect(&self, lease: Duration, in_doubt: InDoubt) -> NewEffect {
        let ms = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let mut rules = EffectRules::default();
        rules.lease_ms = ms(lease);
        match in_doubt {
            InDoubt::Repeat => rules.safety = Safety::Repeatable,
            InDoubt::Verify { settle } => (rules.safety, rules.settle_ms) = (Safety::Verified, ms(settle)),
            InDoubt::Wait => rules.safety = Safety::Once,
        }
        NewEffect::new("charge", Self::KIND, json!(self).to_string()).rules(rules)
    }
}

/// Outbox handler for [`ChargePayment`] effects.
#[derive(Clone, Debug)]
pub struct Charger {
    /// Client of the processor. Twice its timeout must fit into the worker's, because a charge may need a second call.
    pub processor: ProcessorClient,
}

impl<T: DerefMut<Target: Statements> + Send> EffectHandler<T> for Charger {
    /// Calls the processor, with no transaction open.
    async fn call(&self, call: &EffectCall) -> CallOutcome {
        let payment: ChargePayment = match serde_json::from_slice(&call.payload) {
            Ok(payment) => payment,
            Err(error) => return CallOutcome::Refused { why: format!("unreadable: {error}") },
        };
        // Continue the trace of the request that made the payment, so that it includes the processor's part.
        let processor = self.processor.traced(call.trace.as_deref().and_then(TraceContext::parse));
        match processor.charge(&call.downstream_key, &payment.request, call.tries == 1).await {
            ChargeOutcome::Ended(charge) => CallOutcome::Made(call_result(charge)),
            ChargeOutcome::Refused { why } => CallOutcome::Refused { why },
            ChargeOutcome::NotMade { why, after } => CallOutcome::NotMade { why, after },
            ChargeOutcome::Uncertain { why } => CallOutcome::Uncertain { why },
        }
    }

    /// Looks up an earlier call, for [`InDoubt::Verify`]. A lookup without an answer is `Unsure`, never `NotMade`.
    async fn verify(&self, call: &EffectCall) -> VerifyOutcome {
        match self.processor.find(&call.downstream_key).await {
            Ok(Some(charge)) => VerifyOutcome::Made(call_result(charge)),
            Ok(None) => VerifyOutcome::NotMade,
            Err(_) => VerifyOutcome::Unsure,
        }
    }

    /// Translates a webhook's charge from the processor's format into ours, so that `record` reads only one format.
    fn on_evidence(&self, _: &EffectCall, evidence: CallResult) -> CallResult {
        match Charge::parse(&evidence.result) {
            Some(charge) => CallResult { provider_id: evidence.provider_id, ..call_result(charge) },
            // `record` cannot read it either, and returns an error that ibid reports.
            None => evidence,
        }
    }

    /// Ends the payment, in the transaction that ends the effect.
    async fn record(&self, call: &EffectCall, settled: &SettledEffect, tx: &mut T) -> Result<(), BoxError> {
        match settled {
            SettledEffect::Done(made) => {
                let payment: ChargePayment = serde_json::from_slice(&call.payload)?;
                let charge: Charge = serde_json::from_slice(&made.result)?;
                let charge_id = SqlValue::Text(charge.charge_id.as_deref());
                tx.run(
                    "update payment set status = $2, charge_id = $3 where id = $1 and status = 'pending'",
                    &[payment.payment_id.as_str().into(), charge.status().into(), charge_id],
                )
                .await?;
            }
            SettledEffect::Dead { why } | SettledEffect::Unknown { why } => {
                tracing::error!(record = %call.record.short(), why, "payment stays pending: an operator must look");
            }
        }
        Ok(())
    }
}

/// Builds the result that is stored with the effect.
fn call_result(charge: Charge) -> CallResult {
    CallResult { result: json!(charge).to_string().into(), provider_id: charge.charge_id, answer: None }
}
