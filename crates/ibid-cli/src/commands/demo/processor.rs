//! The demo's card processor. It charges once per key, and cuts the connection at the first request for each charge, which
//! is the fault that leads to double charges.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::api::{ApiBody, BODY_BYTES_MAX, cut_response, error_response, json_response};
use crate::gateway::server::{self, ServerLimits};

/// Serves the processor for as long as it is polled.
pub(super) async fn serve(listener: TcpListener) {
    let charges = Charges::default();
    let service = tower::service_fn(move |request| {
        let charges = charges.clone();
        async move { Ok::<_, Infallible>(charges.answer(request).await) }
    });
    server::serve(listener, service, ServerLimits::default(), pending()).await;
}

/// The number of requests, and the charges made so far.
#[derive(Clone, Default)]
struct Charges(Arc<Mutex<(u64, Vec<Value>)>>);

impl Charges {
    async fn answer(&self, request: Request<Incoming>) -> Response<ApiBody> {
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/charges") => self.charge(request).await,
            (&Method::GET, "/charges") => {
                let page = self.0.lock();
                let (requests, charges) = &*page;
                let key = request.uri().query().and_then(|query| query.strip_prefix("idempotency_key="));
                match key.map(|key| charges.iter().find(|charge| charge["idempotencyKey"] == key)) {
                    Some(Some(charge)) => json_response(StatusCode::OK, charge.to_string()),
                    Some(None) => error_response(StatusCode::NOT_FOUND, "no charge under this key"),
                    None => {
                        let list =
                            json!({ "requests": requests, "count": charges.len(), "charges": charges });
                        json_response(StatusCode::OK, list.to_string())
                    }
                }
            }
            _ => error_response(StatusCode::NOT_FOUND, "there is only /charges"),
        }
    }

    async fn charge(&self, request: Request<Incoming>) -> Response<ApiBody> {
        let key =
            request.headers().get("idempotency-key").and_then(|key| key.to_str().ok()).map(str::to_owned);
        let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await;
        let charge_request =
            body.ok().and_then(|body| serde_json::from_slice::<Value>(&body.to_bytes()).ok());
        let (Some(key), Some(mut charge @ Value::Object(_))) = (key, charge_request) else {
            return error_response(StatusCode::BAD_REQUEST, "needs a key and a JSON object");
        };
        let mut page = self.0.lock();
        let (requests, charges) = &mut *page;
        *requests += 1;
        if let Some(made) = charges.iter().find(|made| made["idempotencyKey"] == key.as_str()) {
            return json_response(StatusCode::CREATED, made.to_string());
        }
        if charges.len() >= CHARGES_MAX {
            return error_response(StatusCode::INSUFFICIENT_STORAGE, "the demo has made enough charges");
        }
        charge["chargeId"] = format!("ch_{}", charges.len() + 1).into();
        charge["status"] = "succeeded".into();
        charge["idempotencyKey"] = key.into();
        charges.push(charge);
        cut_response()
    }
}

/// Most charges of one demo: more than anyone makes by hand.
const CHARGES_MAX: usize = 10_000;
