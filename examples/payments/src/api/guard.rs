//! The guard of the keys: which routes, under which rules, and whose key it is.

use std::time::Duration;

use http::Method;
use ibid::Ibid;
use ibid::core::policy::{OnLapse, OnServerError, Policy};
use ibid::core::scope::Tenant;
use ibid::http::{Begins, GuardLayer, NoTenant, Routes, RoutesError, Rule, Tenants};

use crate::account::Account;
use crate::intake::{PAYMENTS, RIDES};

/// Guards every POST; these two by rules of their own.
pub(super) fn guard(ibid: Ibid, lease: Duration) -> Result<GuardLayer, RoutesError> {
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
    Ok(GuardLayer::with_routes(ibid, Tenants::by(tenant), routes))
}

/// The account is the tenant: another account's same key is another request.
fn tenant(head: &http::request::Parts) -> Result<Tenant, NoTenant> {
    let account = head.extensions.get::<Account>().ok_or(NoTenant)?;
    Tenant::new(account.name()).map_err(|_| NoTenant)
}
