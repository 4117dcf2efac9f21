//! The object-safe twin of [`EffectHandler`], so that one worker can have handlers of several types.

use ibid_core::store::BoxFuture;

use super::handler::{
    BoxError, CallOutcome, CallResult, EffectCall, EffectHandler, SettledEffect, VerifyOutcome,
};

/// [`EffectHandler`] with boxed futures. Every handler implements it.
pub(crate) trait DynEffectHandler<T>: Send + Sync {
    fn call<'a>(&'a self, call: &'a EffectCall) -> BoxFuture<'a, CallOutcome>;

    fn verify<'a>(&'a self, call: &'a EffectCall) -> BoxFuture<'a, VerifyOutcome>;

    fn on_evidence(&self, call: &EffectCall, told: CallResult) -> CallResult;

    fn record<'a>(
        &'a self,
        call: &'a EffectCall,
        settled: &'a SettledEffect,
        tx: &'a mut T,
    ) -> BoxFuture<'a, Result<(), BoxError>>;
}

impl<T: 'static, H: EffectHandler<T>> DynEffectHandler<T> for H {
    fn call<'a>(&'a self, call: &'a EffectCall) -> BoxFuture<'a, CallOutcome> {
        Box::pin(EffectHandler::call(self, call))
    }

    fn verify<'a>(&'a self, call: &'a EffectCall) -> BoxFuture<'a, VerifyOutcome> {
        Box::pin(EffectHandler::verify(self, call))
    }

    fn on_evidence(&self, call: &EffectCall, told: CallResult) -> CallResult {
        EffectHandler::on_evidence(self, call, told)
    }

    fn record<'a>(
        &'a self,
        call: &'a EffectCall,
        settled: &'a SettledEffect,
        tx: &'a mut T,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(EffectHandler::record(self, call, settled, tx))
    }
}
