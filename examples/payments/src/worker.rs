//! The worker's handler: charges a payment after its transaction has committed.
//!
//! A payment becomes `succeeded` or `failed` only when that is certain. If the effect ends without a certain result (dead
//! or unknown), the payment stays `pending`, because the money may be taken, and an operator has to look. When an operator
//! retries it (`ibid effects retry`), it ends the payment like any other.

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

/// What to do about a charge whose response was lost. It depends on the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InDoubt {
    /// The processor deduplicates by our key: repeat the call.
    Repeat,
    /// It does not, but can be asked by our key: ask before another call.
    Verify {
        /// How long a call may be in flight. An earlier "no" would prove nothing.
        settle: Duration,
    },
    /// Neither: wait for its webhook, or an operator.
    Wait,
}

/// The effect of a payment.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChargePayment {
    /// Id of the payment.
    pub payment_id: String,
    /// What to charge.
    pub request: ChargeRequest,
}

impl ChargePayment {
    /// The kind of effect that [`Charger`] handles.
    pub const KIND: &str = "charge";

    /// Returns the effect for the outbox.
    pub fn effect(&self, lease: Duration, in_doubt: InDoubt) -> NewEffect {
        let ms = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let rules = EffectRules { lease_ms: ms(lease), ..EffectRules::default() };
        let rules = match in_doubt {
            InDoubt::Repeat => EffectRules { safety: Safety::Repeatable, ..rules },
            InDoubt::Verify { settle } => {
                EffectRules { safety: Safety::Verified, settle_ms: ms(settle), ..rules }
            }
            InDoubt::Wait => EffectRules { safety: Safety::Once, ..rules },
        };
        NewEffect::new("charge", Self::KIND, json!(self).to_string()).rules(rules)
    }
}

/// Handles [`ChargePayment`] effects.
#[derive(Clone, Debug)]
pub struct Charger {
    /// The processor. Two of its time-outs must fit into the worker's.
    pub processor: ProcessorClient,
}

impl<T: DerefMut<Target: Statements> + Send> EffectHandler<T> for Charger {
    /// Calls the processor, with no transaction open.
    async fn call(&self, call: &EffectCall) -> CallOutcome {
        let payment: ChargePayment = match serde_json::from_slice(&call.payload) {
            Ok(payment) => payment,
            Err(error) => return CallOutcome::Refused { why: format!("unreadable: {error}") },
        };
        // The trace of the payment's request includes the processor's part.
        let processor = self.processor.traced(call.trace.as_deref().and_then(TraceContext::parse));
        match processor.charge(&call.downstream_key, &payment.request, call.tries == 1).await {
            ChargeOutcome::Ended(charge) => CallOutcome::Made(made(charge)),
            ChargeOutcome::Refused { why } => CallOutcome::Refused { why },
            ChargeOutcome::NotMade { why, after } => CallOutcome::NotMade { why, after },
            ChargeOutcome::Uncertain { why } => CallOutcome::Uncertain { why },
        }
    }

    /// Asks the processor about an earlier call, for [`InDoubt::Verify`]. No answer is not a "no".
    async fn verify(&self, call: &EffectCall) -> VerifyOutcome {
        match self.processor.find(&call.downstream_key).await {
            Ok(Some(charge)) => VerifyOutcome::Made(made(charge)),
            Ok(None) => VerifyOutcome::NotMade,
            Err(_) => VerifyOutcome::Unsure,
        }
    }

    /// Translates a webhook, which has the charge as the processor writes it.
    fn on_evidence(&self, _: &EffectCall, told: CallResult) -> CallResult {
        match Charge::parse(&told.result) {
            Some(charge) => CallResult { provider_id: told.provider_id, ..made(charge) },
            // `record` cannot read it either, and reports that.
            None => told,
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

/// The result to store with an effect.
fn made(charge: Charge) -> CallResult {
    CallResult { result: json!(charge).to_string().into(), provider_id: charge.charge_id, answer: None }
}
