//! Charges: what a call to the processor proves, and the worker's part in a payment.
//!
//! A payment is `succeeded` or `failed` only when that is certain. An effect that ends without an answer (dead or
//! unknown) leaves its payment `pending`: the money may be taken, and a person has to look. Once they have had it made
//! after all (`ibid::operator::Operator::retry`), it ends the payment like any other.

use std::ops::DerefMut;
use std::time::Duration;

use ibid::core::store::Pending;
use ibid::http::TraceContext;
use ibid::outbox::{
    BoxError, Call, CallOutcome, Handler, Made, NewEffect, Rules, Safety, Settled as Ended, Verified,
};
use serde::{Deserialize, Serialize};

use crate::db::Writes;
use crate::db::payments::Settled;
use crate::provider_client::{ChargeOutcome, ChargeRequest, FindError, Found, ProviderClient};

/// How a charge ended, as it is kept with an effect or a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Charge {
    /// Whether the money is taken.
    pub succeeded: bool,
    /// The processor's name for it, if it made one.
    pub charge_id: Option<String>,
}

impl Charge {
    /// What it means for whatever was to be paid.
    pub fn settled(&self) -> Settled {
        if self.succeeded { Settled::Succeeded } else { Settled::Failed }
    }

    /// As a worker gives it to the effect.
    fn made(self) -> Result<Made, serde_json::Error> {
        Ok(Made { result: serde_json::to_vec(&self)?.into(), provider_id: self.charge_id, answer: None })
    }
}

/// What is done about a charge whose answer was lost. It depends on the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InDoubt {
    /// It deduplicates by our key: the same call is made again.
    Repeat,
    /// It does not, but it can be asked by our key, and it is before any other call.
    Ask {
        /// So long a call may still be under way: an earlier "no" would prove nothing.
        settle: Duration,
    },
    /// Neither: its webhook tells, or a person.
    Wait,
}

/// What came of asking for a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It has ended, and how is certain.
    Ended(Charge),
    /// The processor does not take it, and does not say what became of an earlier call.
    Refused(String),
    /// Certainly nothing was charged by this call; it may be made again, after the pause that the processor wants.
    NotMade(String, Option<Duration>),
    /// Something may have been charged.
    Uncertain(String),
}

/// Asks for a charge once. `is_first` says that nobody has asked under this key before.
pub async fn ask(provider: &ProviderClient, key: &str, asked: &ChargeRequest, is_first: bool) -> Asked {
    match provider.charge(key, asked).await {
        ChargeOutcome::Charged { charge_id } => {
            Asked::Ended(Charge { succeeded: true, charge_id: Some(charge_id) })
        }
        ChargeOutcome::Declined { charge_id } => {
            Asked::Ended(Charge { succeeded: false, charge_id: Some(charge_id) })
        }
        ChargeOutcome::NotMade { retry_after, why } => Asked::NotMade(why, retry_after),
        ChargeOutcome::Uncertain { why } => Asked::Uncertain(why),
        // It is proof for this call only. An earlier one may have charged, and then the refusal is about something else:
        // a credential that was changed, say.
        ChargeOutcome::Refused { status } => match provider.find(key).await {
            Ok(None) if is_first => Asked::Ended(Charge { succeeded: false, charge_id: None }),
            _ => Asked::Refused(format!("the processor refused: {status}")),
        },
    }
}

/// Asks what became of a charge; none if the processor knows of no charge under this key.
pub async fn find(provider: &ProviderClient, key: &str) -> Result<Option<Charge>, FindError> {
    let found = provider.find(key).await.inspect_err(|error| tracing::warn!(%error, "it is asked again"))?;
    Ok(found.map(|found| match found {
        Found::Charged { charge_id } => Charge { succeeded: true, charge_id: Some(charge_id) },
        Found::Declined { charge_id } => Charge { succeeded: false, charge_id: Some(charge_id) },
    }))
}

/// The effect of a payment: it is to be charged.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChargePayment {
    /// Which payment.
    pub payment_id: String,
    /// What the processor is asked for.
    pub asked: ChargeRequest,
}

impl ChargePayment {
    /// Which handler carries it out.
    pub const KIND: &str = "charge";

    /// For the outbox.
    pub fn effect(&self, lease: Duration, in_doubt: InDoubt) -> Result<NewEffect, serde_json::Error> {
        let ms = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let rules = Rules { lease_ms: ms(lease), ..Rules::default() };
        let rules = match in_doubt {
            InDoubt::Repeat => Rules { safety: Safety::Repeatable, ..rules },
            InDoubt::Ask { settle } => Rules { safety: Safety::Verified, settle_ms: ms(settle), ..rules },
            InDoubt::Wait => Rules { safety: Safety::Once, ..rules },
        };
        Ok(NewEffect::new("charge", Self::KIND, serde_json::to_vec(self)?).rules(rules))
    }
}

/// Carries out [`ChargePayment`].
#[derive(Clone, Debug)]
pub struct Charger {
    /// Whom to ask. Its patience, twice, must be within the worker's.
    pub provider: ProviderClient,
}

impl<T: DerefMut<Target: Writes> + Send> Handler<T> for Charger {
    fn call<'a>(&'a self, call: &'a Call) -> Pending<'a, CallOutcome> {
        Box::pin(async move {
            let payment: ChargePayment = match serde_json::from_slice(&call.payload) {
                Ok(payment) => payment,
                Err(error) => return CallOutcome::Refused { why: format!("unreadable: {error}") },
            };
            // Whoever looks at the trace of the payment's request finds the processor's part in it.
            let provider = self.provider.traced(call.trace.as_deref().and_then(TraceContext::parse));
            match ask(&provider, &call.downstream_key, &payment.asked, call.tries == 1).await {
                Asked::Ended(charge) => match charge.made() {
                    Ok(made) => CallOutcome::Made(made),
                    Err(error) => CallOutcome::Uncertain { why: error.to_string() },
                },
                Asked::Refused(why) => CallOutcome::Refused { why },
                Asked::NotMade(why, after) => CallOutcome::NotMade { why, after },
                Asked::Uncertain(why) => CallOutcome::Uncertain { why },
            }
        })
    }

    /// Asked where it was enqueued under [`InDoubt::Ask`], and no sooner than it says. A processor that does not answer has
    /// not said no.
    fn verify<'a>(&'a self, call: &'a Call) -> Pending<'a, Verified> {
        Box::pin(async move {
            match find(&self.provider, &call.downstream_key).await {
                Ok(Some(charge)) => charge.made().map_or(Verified::Unsure, Verified::Made),
                Ok(None) => Verified::NotMade,
                Err(_) => Verified::Unsure,
            }
        })
    }

    /// The webhook has the charge as the processor answers it; what is kept is ours.
    fn told(&self, _: &Call, told: Made) -> Made {
        let charge = ProviderClient::read_charge(&told.result)
            .map(|(succeeded, charge_id)| Charge { succeeded, charge_id: Some(charge_id) });
        match charge.and_then(|charge| serde_json::to_vec(&charge).ok()) {
            Some(result) => Made { result: result.into(), answer: None, ..told },
            // As it stands: then `record` can't read it either, and says so.
            None => told,
        }
    }

    fn record<'a>(
        &'a self,
        call: &'a Call,
        settled: &'a Ended,
        tx: &'a mut T,
    ) -> Pending<'a, Result<(), BoxError>> {
        Box::pin(async move {
            match settled {
                Ended::Done(made) => {
                    let payment: ChargePayment = serde_json::from_slice(&call.payload)?;
                    let charge: Charge = serde_json::from_slice(&made.result)?;
                    let charge_id = charge.charge_id.as_deref();
                    tx.settle_payment(&payment.payment_id, charge.settled(), charge_id).await?;
                }
                Ended::Dead { why } | Ended::Unknown { why } => {
                    tracing::error!(record = %call.record.short(), why, "a payment stays pending: a person must look");
                }
            }
            Ok(())
        })
    }
}
