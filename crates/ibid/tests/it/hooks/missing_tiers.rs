//! Starts on a store that lacks a capability: what needs it is refused, and the rest works.

use ibid::http::{ReservedBy, Rule};
use ibid_core::policy::{AnswerRule, OnLapse};
use ibid_core::store::Tiers;

use super::*;

/// Starts a guard on a memory store with these capabilities. Returns why it is refused.
async fn start(tiers: Tiers, policy: Policy, reserved_by: ReservedBy) -> Result<IdempotencyLayer, String> {
    let store = FaultyStore::with_tiers(Arc::new(MemoryStore::new(Clock::system())), tiers);
    let rule = Rule::new(vec![axum::http::Method::POST], "/pay", Some(policy))
        .with(|rule| rule.reserved_by = reserved_by);
    let routes = Routes::new(Policy::default(), vec![rule]).expect("good routes");
    let settings = Settings::default().with(|settings| settings.identity = routes.identity("one"));
    let ibid = Ibid::start(store, settings).await.expect("it starts");
    let layer = || IdempotencyLayer::with_routes(ibid, TenantSource::only(), routes);
    let started = std::panic::catch_unwind(std::panic::AssertUnwindSafe(layer));
    started.map_err(|why| *why.downcast::<String>().expect("a message"))
}

#[tokio::test]
async fn a_route_that_needs_what_the_store_lacks_is_refused() {
    let none = Tiers { bodies: false, browse: false, evidence: false, sql: false };
    let later = Policy::default().with(|policy| policy.answer = AnswerRule::Async);
    let resumed = Policy::default().with(|policy| policy.on_lapse = OnLapse::Resume);
    for (policy, reserved_by, problem) in [
        (&later, ReservedBy::Layer, "keeps no requests"),
        (&resumed, ReservedBy::Layer, "keeps no requests"),
        (&Policy::default(), ReservedBy::Handler, "no SQL database"),
    ] {
        let refused = start(none, policy.clone(), reserved_by).await.expect_err("it is refused");
        assert!(refused.contains("/pay") && refused.contains(problem), "{refused}");
    }
    for policy in [later, resumed] {
        assert!(start(Tiers { bodies: true, ..none }, policy, ReservedBy::Layer).await.is_ok());
    }
}

#[tokio::test]
async fn a_hook_needs_a_store_that_keeps_evidence() {
    let none = Tiers { bodies: false, browse: false, evidence: false, sql: false };
    let layer = async |tiers| start(tiers, Policy::default(), ReservedBy::Layer).await.expect("it starts");
    let refused = layer(none).await.hooks(vec![hook()]).expect_err("it is refused");
    assert!(refused.to_string().contains("webhook evidence"), "{refused}");
    assert!(layer(Tiers { evidence: true, ..none }).await.hooks(vec![hook()]).is_ok());
}
