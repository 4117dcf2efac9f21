//! One payment, the same in every benchmark: what is asked, under which key, and what is answered.

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

use crate::Failed;

/// What every payment asks.
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

/// A payment under this key, as the one tenant of `--tenant none` sends it.
pub(crate) fn identity(key: &str) -> Result<Identity, Failed> {
    let operation = Operation { method: METHOD.into(), path: PATH.into() };
    Ok(Identity { tenant: Tenant::only(), operation, key: Key::stored(key)? })
}

/// What every payment is answered.
pub(crate) fn answer() -> Response {
    let content_type = ("content-type".to_owned(), Bytes::from_static(JSON.as_bytes()));
    let (headers, body) = (vec![content_type], Bytes::from_static(ANSWER.as_bytes()));
    Response { status: 201, headers, body, trailers: Vec::new(), version: 1 }
}

/// An engine that agrees with a gateway of default settings, so that either may use what the other wrote.
pub(crate) async fn engine(store: Arc<dyn Store>) -> Result<Ibid, Failed> {
    Ok(Ibid::start(store, Settings::default()).await?)
}

/// Carries out one payment, from begin to finish.
pub(crate) async fn pay(ibid: &Ibid, policy: &Arc<Policy>, key: &str) -> Result<(), Failed> {
    let ask = ibid.ask(identity(key)?, policy.clone(), Arc::new(Payment));
    let Begin::Run(mut attempt) = ibid.begin(ask).await? else {
        return Err(format!("`{key}` is not a fresh key").into());
    };
    attempt.ready().await?;
    match attempt.finish(answer()).await {
        Outcome::Completed(_) => Ok(()),
        other => Err(format!("a finish came to {other:?}").into()),
    }
}

pub(crate) const METHOD: &str = "POST";
pub(crate) const PATH: &str = "/payments";
pub(crate) const JSON: &str = "application/json";

/// About what a small payment looks like.
pub(crate) const BODY: &str =
    r#"{"customerId":"cus_8Yw2","amountCents":4200,"currency":"EUR","reference":"order 1"}"#;

/// Some 200 bytes.
pub(crate) const ANSWER: &str = concat!(
    r#"{"id":"pay_3f9c1d2e7b8a4655","object":"payment","customerId":"cus_8Yw2","amountCents":4200,"#,
    r#""currency":"EUR","status":"succeeded","createdAt":"2026-01-01T00:00:00Z","reference":"order 1"}"#,
);
