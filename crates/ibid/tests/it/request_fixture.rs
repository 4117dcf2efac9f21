//! A payment request, for tests of the engine that do not depend on the request.

use std::sync::Arc;

use ibid::upkeep::{LookupResult, OutcomeLookup, UnknownRequest};
use ibid::{Ibid, Response, Settings};
use ibid_core::fingerprint::RequestView;
use ibid_core::key::Key;
use ibid_core::machine::BeginRequest;
use ibid_core::policy::Policy;
use ibid_core::scope::{Identity, Operation, Tenant};
use ibid_core::store::BoxFuture;

/// Builds a payment request of this tenant under this key.
pub(crate) fn ask(ibid: &Ibid, tenant: &str, key: &str, policy: Policy) -> BeginRequest {
    let identity = Identity {
        tenant: Tenant::new(tenant).expect("a good name"),
        operation: Operation { method: "POST".into(), path: "/pay".into() },
        key: Key::stored(key).expect("a good key"),
    };
    ibid.ask(identity, Arc::new(policy), Arc::new(Payment("{}")))
}

/// Settings of a node that takes over lapsed records at once. No other test than that of the wait itself needs it.
pub(crate) fn takes_over_at_start() -> Settings {
    Settings::default().with(|settings| settings.may_take_over_at_start = true)
}

/// A lookup that finds that every request was executed.
pub(crate) struct FindsAll;

impl OutcomeLookup for FindsAll {
    fn find(&self, _: UnknownRequest) -> BoxFuture<'static, LookupResult> {
        Box::pin(async { LookupResult::Executed(Response::plain(201, "text/plain", "found".to_owned())) })
    }
}

/// A payment with this body.
pub(crate) struct Payment(pub(crate) &'static str);

impl RequestView for Payment {
    fn method(&self) -> &str {
        "POST"
    }
    fn path(&self) -> &str {
        "/pay"
    }
    fn query(&self) -> Option<&str> {
        None
    }
    fn header_lines(&self, _: &str, _: &mut dyn FnMut(&[u8])) {}
    fn body(&self) -> &[u8] {
        self.0.as_bytes()
    }
}
