//! The outbox handler: charges a payment after its transaction has committed.
//!
//! A payment becomes `succeeded` or `failed` only when that is certain. If the effect ends without a certain result (dead
//! or unknown), the payment stays `pending`, because the money may have been taken, and an operator has to look at it. If
//! the operator retries the effect (`ibid effects retry`), its result ends the payment in the same way.

use ibid::prelude::*;
use serde_json::json;

use crate::db::Db;
use crate::processor::{Charge, ChargeError, ChargeRequest, ProcessorClient};

/// Handler of effects whose payload is a [`ChargeRequest`] for a payment.
#[derive(Clone, Debug)]
pub struct Charger {
    /// Client of the processor. Twice its timeout must fit into the worker's, because a charge may need a second call.
    pub processor: ProcessorClient,
    /// Database of the payments.
    pub db: Db,
}

/// Implements the handler for the transactions of one database.
macro_rules! charge_payments_in {
    ($tx:ty) => {
        impl EffectHandler<$tx> for Charger {
            type Payload = ChargeRequest;

            /// Calls the processor, with no transaction open.
            async fn call(&self, call: &EffectCall<ChargeRequest>) -> CallOutcome {
                // Continue the trace of the request that made the payment, so that it includes the processor's part.
                let processor = self.processor.traced(call.trace.as_deref().and_then(TraceContext::parse));
                match processor.charge(&call.downstream_key, &call.payload, call.tries == 1).await {
                    Ok(charge) => CallOutcome::Made(call_result(&charge)),
                    Err(ChargeError::Refused(why)) => CallOutcome::Refused { why },
                    Err(ChargeError::NotMade { why, after }) => CallOutcome::NotMade { why, after },
                    Err(ChargeError::Uncertain(why)) => CallOutcome::Uncertain { why },
                }
            }

            /// Looks up an earlier call, for [`Safety::Verified`](ibid::prelude::Safety). A lookup without an answer is `Unsure`, never `NotMade`.
            async fn verify(&self, call: &EffectCall<ChargeRequest>) -> VerifyOutcome {
                match self.processor.find(&call.downstream_key).await {
                    Ok(Some(charge)) => VerifyOutcome::Made(call_result(&charge)),
                    Ok(None) => VerifyOutcome::NotMade,
                    Err(_) => VerifyOutcome::Unsure,
                }
            }

            /// Ends the payment, in the transaction that ends the effect.
            async fn record(
                &self,
                call: &EffectCall<ChargeRequest>,
                settled: &SettledEffect,
                tx: &mut $tx,
            ) -> Result<(), BoxError> {
                match settled {
                    SettledEffect::Done(made) => {
                        // Our own result, or the charge in a webhook: both have the same format.
                        let charge: Charge = serde_json::from_slice(&made.result)?;
                        let update = "update payment set status = $1, charge_id = $2
                                       where id = $3 and status = 'pending'";
                        sqlx::query(self.db.sql(update))
                            .bind(charge.status())
                            .bind(charge.id())
                            .bind(&call.payload.reference)
                            .execute(tx.conn())
                            .await?;
                    }
                    SettledEffect::Dead { why } | SettledEffect::Unknown { why } => {
                        tracing::error!(record = %call.record.short(), why, "payment stays pending: an operator must look");
                    }
                }
                Ok(())
            }
        }
    };
}

charge_payments_in!(SqlxSqliteTx);
#[cfg(feature = "postgres")]
charge_payments_in!(SqlxPostgresTx);
#[cfg(feature = "mysql")]
charge_payments_in!(SqlxMysqlTx);

/// Builds the result that is stored with the effect.
fn call_result(charge: &Charge) -> CallResult {
    CallResult::default().with(|made| {
        made.result = json!(charge).to_string().into();
        made.provider_id = charge.id().map(str::to_owned);
    })
}

/// The kind of effect that [`Charger`] handles.
pub const CHARGE: &str = "charge";
