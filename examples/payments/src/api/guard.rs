//! The guard of the keys: which routes, under which rules, whose key it is, and who may say what became of a charge.

use std::time::Duration;

use http::Method;
use ibid::Ibid;
use ibid::core::fingerprint::Pointer;
use ibid::core::policy::{OnLapse, OnServerError, Policy};
use ibid::core::scope::Tenant;
use ibid::http::hooks::{Hook, HookSecret, Mapping, Scheme, Target};
use ibid::http::{Begins, IdempotencyLayer, MissingIdentity, Routes, Rule, TenantSource};

use crate::account::Account;
use crate::intake::{PAYMENTS, RIDES};
use crate::listen::Failure;

/// Guards every POST; these two by rules of their own.
pub(super) fn guard(
    ibid: Ibid,
    lease: Duration,
    hook: Option<HookSecret>,
) -> Result<IdempotencyLayer, Failure> {
    // A month of replays, and a year in which an old key is refused instead of charged again.
    let money = Policy { lease, ..Policy::payments() };
    // The one transaction is all that a payment's handler does, and whoever takes over fences it.
    let one = Policy::one_transaction();
    let payments = Policy { on_lapse: one.on_lapse, on_server_error: one.on_server_error, ..money.clone() };
    // A ride goes on after its last phase. A server error is safe to retry for the same reason.
    let rides = Policy { on_lapse: OnLapse::Resume, on_server_error: OnServerError::Retry, ..money.clone() };
    let rule = |pattern: &str, policy| Rule {
        methods: vec![Method::POST],
        pattern: pattern.to_owned(),
        policy: Some(policy),
        begins: Begins::Guard,
    };
    let routes = Routes::new(money, vec![rule(PAYMENTS, payments), rule(RIDES, rides)])?;
    let hooks = hook.map(processor).transpose()?;
    Ok(IdempotencyLayer::with_routes(ibid, TenantSource::by(tenant), routes)
        .hooks(hooks.into_iter().collect())?)
}

/// The processor tells of every charge, and names it by the key that the worker called under. So it needs no tenant.
fn processor(secret: HookSecret) -> Result<Hook, Failure> {
    let mapping = Mapping {
        target: Target::DownstreamKey(Pointer::parse("/data/idempotencyKey")?),
        outcome: Pointer::parse("/type")?,
        executed: vec![("charge.succeeded".to_owned(), 201), ("charge.declined".to_owned(), 402)],
        not_executed: vec![],
        body: Pointer::parse("/data")?,
        provider_id: Some(Pointer::parse("/data/chargeId")?),
        event: None,
        event_time: None,
    };
    Ok(Hook { name: "processor".to_owned(), scheme: Scheme::Standard, secrets: vec![secret], mapping })
}

/// The account is the tenant: another account's same key is another request.
fn tenant(head: &http::request::Parts) -> Result<Tenant, MissingIdentity> {
    let account = head.extensions.get::<Account>().ok_or(MissingIdentity)?;
    Tenant::new(account.name()).map_err(|_| MissingIdentity)
}
