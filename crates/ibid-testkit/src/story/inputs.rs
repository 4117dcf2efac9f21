//! Inputs of the machine: a payment request, a response, an operator action.

use std::sync::{Arc, LazyLock};

use ibid_core::fingerprint::{RequestView, Secret, Secrets};
use ibid_core::key::{Key, KeyForm};
use ibid_core::machine::{AttemptResponse, BeginRequest};
use ibid_core::operator_action::OperatorAction;
use ibid_core::policy::Policy;
use ibid_core::record::Nonce;
use ibid_core::response::Response;
use ibid_core::scope::{Identity, Operation, Tenant};

/// Builds a payment request with this body, as the machine takes it.
pub fn ask(tenant: &str, body: &str, policy: Arc<Policy>, nonce: Nonce) -> BeginRequest {
    let identity = Identity {
        tenant: Tenant::new(tenant).expect("a story's tenants have plain names"),
        operation: Operation { method: "POST".into(), path: "/payments".into() },
        key: Key::parse(b"the-key", KeyForm::QuotedOrBare).expect("a plain key"),
    };
    let secret = Secret::new(b"stories need a secret of some length").expect("long enough");
    let secrets = Secrets::new(vec![secret]).expect("one secret is enough");
    BeginRequest::new(identity, policy, Arc::new(secrets), Arc::new(Payment(body.to_owned())), nonce)
}

/// Builds a response with this status; its body names the actor that gave it.
pub fn answer(status: u16, from: &str) -> AttemptResponse {
    let response = Response::plain(status, "text/plain", from.to_owned());
    AttemptResponse {
        status,
        retry_after: false,
        kept: Some(Arc::new(response)),
        provider_id: None,
        proof: None,
    }
}

/// An operator action for stories in which the operator does not matter.
pub fn act() -> &'static OperatorAction {
    static ACT: LazyLock<OperatorAction> =
        LazyLock::new(|| OperatorAction::new("ann", "asked to").expect("a name and a reason"));
    &ACT
}

struct Payment(String);

impl RequestView for Payment {
    fn method(&self) -> &str {
        "POST"
    }
    fn path(&self) -> &str {
        "/payments"
    }
    fn query(&self) -> Option<&str> {
        None
    }
    fn header_lines(&self, _: &str, _: &mut dyn FnMut(&[u8])) {}
    fn body(&self) -> &[u8] {
        self.0.as_bytes()
    }
}
