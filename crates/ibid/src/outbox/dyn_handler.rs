//! The object-safe twin of [`EffectHandler`], so that one worker can have handlers of several types. It parses the payload for
//! them.

use ibid_core::store::BoxFuture;

use super::handler::{
    BoxError, CallOutcome, CallResult, EffectCall, EffectHandler, SettledEffect, VerifyOutcome,
};
use super::payload::PayloadError;

/// [`EffectHandler`] with boxed futures and unparsed payloads. Every handler implements it.
pub(crate) trait DynEffectHandler<T>: Send + Sync {
    /// Makes the call. A call whose payload can't be parsed is refused: another try with the same code would fail, too.
    fn call<'a>(&'a self, call: &'a EffectCall) -> BoxFuture<'a, CallOutcome>;

    fn verify<'a>(&'a self, call: &'a EffectCall) -> BoxFuture<'a, Result<VerifyOutcome, PayloadError>>;

    fn on_evidence(&self, call: &EffectCall, told: CallResult) -> Result<CallResult, PayloadError>;

    /// Writes the handler's rows.
    ///
    /// If the payload can't be parsed, there are no rows for an effect that failed: its reason names the payload already, and
    /// the transaction that says so must commit. For a call that was made this is an error, so that its result is not recorded
    /// without its rows.
    fn record<'a>(
        &'a self,
        call: &'a EffectCall,
        settled: &'a SettledEffect,
        tx: &'a mut T,
    ) -> BoxFuture<'a, Result<(), BoxError>>;
}

impl<T: Send + 'static, H: EffectHandler<T>> DynEffectHandler<T> for H {
    fn call<'a>(&'a self, call: &'a EffectCall) -> BoxFuture<'a, CallOutcome> {
        Box::pin(async move {
            match call.parse() {
                Ok(call) => EffectHandler::call(self, &call).await,
                Err(error) => CallOutcome::Refused { why: error.to_string() },
            }
        })
    }

    fn verify<'a>(&'a self, call: &'a EffectCall) -> BoxFuture<'a, Result<VerifyOutcome, PayloadError>> {
        Box::pin(async move { Ok(EffectHandler::verify(self, &call.parse()?).await) })
    }

    fn on_evidence(&self, call: &EffectCall, told: CallResult) -> Result<CallResult, PayloadError> {
        Ok(EffectHandler::on_evidence(self, &call.parse()?, told))
    }

    fn record<'a>(
        &'a self,
        call: &'a EffectCall,
        settled: &'a SettledEffect,
        tx: &'a mut T,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            match (call.parse(), settled) {
                (Ok(call), _) => EffectHandler::record(self, &call, settled, tx).await,
                (Err(error), SettledEffect::Done(_)) => Err(error.into()),
                (Err(_), SettledEffect::Dead { .. } | SettledEffect::Unknown { .. }) => Ok(()),
            }
        })
    }
}
