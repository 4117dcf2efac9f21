//! One payment, the same in every benchmark: its request, its key and its response.

use std::sync::Arc;

use bytes::Bytes;
use ibid::outcome::{Begin, Outcome};
use ibid::{Ibid, Settings};
use ibid_core::fingerprint::RequestView;
use ibid_core::key::Key;
use ibid_core::policy::Policy;
use ibid_core::response::Response;
use ibid_core::scope::{Identity, Operation, Tenant};
use ibid_core::store::Store;

use crate::BenchError;

/// The request of every payment.
pub(crate) struct Payment;

impl RequestView for Payment {
    fn method(&self) -> &str {
        METHOD
    }

    fn path(&self) -> &str {
        PATH
    }

    fn query(&self) -> Option<&str> {
        None
    }

    fn header_lines(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        if name == "content-type" {
            each(JSON.as_bytes());
        }
    }

    fn body(&self) -> &[u8] {
        BODY.as_bytes()
    }
}

/// Returns the identity of a payment under this key, by the only tenant of `--tenant none`.
pub(crate) fn identity(key: &str) -> Result<Identity, BenchError> {
    identity_of(&Tenant::only(), key)
}

/// Returns the identity of a payment of this tenant.
pub(crate) fn identity_of(tenant: &Tenant, key: &str) -> Result<Identity, BenchError> {
    let operation = Operation { method: METHOD.into(), path: PATH.into() };
    Ok(Identity { tenant: tenant.clone(), operation, key: Key::stored(key)? })
}

/// Returns the response to every payment.
pub(crate) fn answer() -> Response {
    let content_type = ("content-type".to_owned(), Bytes::from_static(JSON.as_bytes()));
    let (headers, body) = (vec![content_type], Bytes::from_static(ANSWER.as_bytes()));
    Response { status: 201, headers, body, trailers: Vec::new() }
}

/// Starts an engine with the identity of a default gateway, so that each can use records that the other wrote.
pub(crate) async fn engine(store: Arc<dyn Store>) -> Result<Ibid, BenchError> {
    Ok(Ibid::start(store, Settings::default()).await?)
}

/// Runs one payment, from begin to finish.
pub(crate) async fn pay(ibid: &Ibid, policy: &Arc<Policy>, key: &str) -> Result<(), BenchError> {
    let ask = ibid.ask(identity(key)?, policy.clone(), Arc::new(Payment));
    let Begin::Run(mut attempt) = ibid.begin(ask).await? else {
        return Err(format!("`{key}` is not a fresh key").into());
    };
    attempt.ensure_lease().await?;
    match attempt.finish(answer()).await {
        Outcome::Completed(_) => Ok(()),
        other => Err(format!("a finish came to {other:?}").into()),
    }
}

pub(crate) const METHOD: &str = "POST";
pub(crate) const PATH: &str = "/payments";
pub(crate) const JSON: &str = "application/json";

/// Request body of a typical small payment.
pub(crate) const BODY: &str =
    r#"{"customerId":"cus_8Yw2","amountCents":4200,"currency":"EUR","reference":"order 1"}"#;

/// Response body of some 200 bytes.
pub(crate) const ANSWER: &str = concat!(
    r#"{"id":"pay_3f9c1d2e7b8a4655","object":"payment","customerId":"cus_8Yw2","amountCents":4200,"#,
    r#""currency":"EUR","status":"succeeded","createdAt":"2026-01-01T00:00:00Z","reference":"order 1"}"#,
);
