//! Executes one claimed effect: makes its call or verifies an earlier one, and records the result.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use ibid_core::effect::StoredEffect;
use ibid_core::machine::{ClaimReason, EffectEvent, EffectState};
use ibid_core::sql::Database;
use metrics::counter;
use tokio::time::Instant;

use super::dyn_handler::DynEffectHandler;
use super::handler::{CallOutcome, EffectCall, VerifyOutcome};
use super::record_result::{EffectEnd, EffectResult, ResultWriter};
use super::unrecorded_result::decode_unrecorded;
use crate::evidence::effect::apply_earlier_evidence;
use crate::failpoint::{self, Hit};
use crate::ibid::Ibid;
use crate::telemetry;

/// A claimed effect with everything that its execution needs.
pub(super) struct ClaimedEffect<D: Database> {
    pub(super) ibid: Ibid,
    pub(super) database: Arc<D>,
    pub(super) handler: Arc<dyn DynEffectHandler<D::Tx>>,
    pub(super) timeout: Duration,
    pub(super) effect: StoredEffect,
    pub(super) reason: ClaimReason,
    /// `true` if the commit of the claim was acknowledged. If not, the call is not made, and the effect is released.
    pub(super) is_confirmed: bool,
    /// Instant before the claim was sent.
    pub(super) at: Instant,
}

impl<D: Database> ClaimedEffect<D> {
    /// Makes the call, or verifies an earlier one, and writes the result.
    pub(super) async fn execute(self) -> EffectEnd {
        // The store started the lease after `at`, so the lease does not end before `until`.
        let until = self.at + self.effect.rules.lease();
        let call = EffectCall::of(&self.effect, (Instant::now() + self.timeout).min(until));
        let result = match self.reason {
            _ if !self.is_confirmed => not_made("the claim got no reply", None),
            ClaimReason::Call => self.call(&call, until).await,
            ClaimReason::Verify => self.verify(&call, until).await,
            ClaimReason::Lapsed => self.after_lapse(),
        };
        let writer = ResultWriter {
            ibid: &self.ibid,
            database: &*self.database,
            handler: &*self.handler,
            call: &call,
            effect: &self.effect,
            timeout: self.timeout,
            until,
        };
        let provider_id = result.provider_id.clone();
        let ended = writer.write(result).await;
        self.count(ended);
        if matches!(ended, EffectEnd::Moved { to, .. } if to.waits_for_evidence()) {
            apply_earlier_evidence(&self.ibid, &self.effect, provider_id).await;
        }
        ended
    }

    async fn call(&self, call: &EffectCall, until: Instant) -> EffectResult {
        if Instant::now() >= until {
            return not_made("the lease was over before the call began", None);
        }
        if !self.ibid.engine().confirm_open().await {
            return not_made("a copy keeps the store closed", None);
        }
        if self.effect.may_be_second() {
            let why = "the provider may have forgotten the key of the first call";
            return EffectResult::because(EffectEvent::Uncertain, why);
        }
        let outcome = AssertUnwindSafe(async { self.handler.call(call).await }).catch_unwind();
        let reply = tokio::time::timeout_at(call.deadline, outcome).await;
        if failpoint::at("call.after").await != Hit::Go {
            return EffectResult::because(EffectEvent::Uncertain, "a failpoint");
        }
        match reply {
            Ok(Ok(CallOutcome::Made(made))) => EffectResult::made(EffectEvent::Made, made),
            Ok(Ok(CallOutcome::NotMade { why, after })) => not_made(why, after),
            Ok(Ok(CallOutcome::Refused { why })) => EffectResult::because(EffectEvent::Refused, why),
            Ok(Ok(CallOutcome::Uncertain { why })) => EffectResult::because(EffectEvent::Uncertain, why),
            Ok(Ok(CallOutcome::Accepted { provider_id })) => EffectResult {
                provider_id: Some(provider_id),
                ..EffectResult::because(EffectEvent::Uncertain, "the provider has accepted it, no more")
            },
            Ok(Err(_)) => EffectResult::because(EffectEvent::Uncertain, "the handler panicked"),
            Err(_) => EffectResult::because(EffectEvent::Uncertain, "the call took too long"),
        }
    }

    async fn verify(&self, call: &EffectCall, until: Instant) -> EffectResult {
        let unsure = |why: &str| EffectResult::because(EffectEvent::Verified(None), why);
        if let Some(made) = decode_unrecorded(&self.effect) {
            return EffectResult::made(EffectEvent::Verified(Some(true)), made);
        }
        if Instant::now() >= until {
            return unsure("the lease was over before the provider was asked");
        }
        let reply = AssertUnwindSafe(async { self.handler.verify(call).await }).catch_unwind();
        match tokio::time::timeout_at(call.deadline, reply).await {
            Ok(Ok(Err(error))) => unsure(&error.to_string()),
            Ok(Ok(Ok(VerifyOutcome::Made(made)))) => {
                EffectResult::made(EffectEvent::Verified(Some(true)), made)
            }
            Ok(Ok(Ok(VerifyOutcome::NotMade))) => {
                EffectResult::because(EffectEvent::Verified(Some(false)), "the provider was asked: not made")
            }
            Ok(Ok(Ok(VerifyOutcome::Unsure))) => unsure("the provider was asked, and could not tell"),
            Ok(Err(_)) => unsure("the handler panicked while it asked the provider"),
            Err(_) => unsure("asking the provider took too long"),
        }
    }

    fn after_lapse(&self) -> EffectResult {
        match decode_unrecorded(&self.effect) {
            // The call was made, but its result could not be recorded.
            Some(made) => EffectResult::made(EffectEvent::Made, made),
            None => EffectResult::because(EffectEvent::Lapsed, "the worker that held it went silent"),
        }
    }

    fn count(&self, ended: EffectEnd) {
        let (seq, kind) = (self.effect.seq, &*self.effect.kind);
        match ended {
            EffectEnd::Moved { to, due } => count_move(&self.effect, to, due),
            // No call was made, so no result is lost.
            EffectEnd::Lost if !self.is_confirmed => {}
            EffectEnd::Lost => {
                tracing::warn!(
                    effect = seq,
                    kind,
                    "claim lost: effect was changed by another process; result not recorded"
                );
                counter!(telemetry::EFFECTS_LOST).increment(1);
            }
            EffectEnd::Unwritten => counter!(telemetry::STORE_ERRORS).increment(1),
        }
    }
}

/// Updates the counters for an effect that changed to state `to`, and logs a dead letter.
pub(crate) fn count_move(effect: &StoredEffect, to: EffectState, due: bool) {
    if to.is_dead_letter(due) {
        let (seq, kind) = (effect.seq, &*effect.kind);
        tracing::error!(effect = seq, kind, state = to.name(), "effect needs manual attention");
        counter!(telemetry::EFFECTS_DEAD).increment(1);
    } else if to.is_final() {
        counter!(telemetry::EFFECTS_DONE).increment(1);
    } else {
        counter!(telemetry::EFFECTS_RETRIED).increment(1);
    }
}

fn not_made(why: impl Into<String>, after: Option<Duration>) -> EffectResult {
    EffectResult::because(EffectEvent::NotMade { after }, why)
}
