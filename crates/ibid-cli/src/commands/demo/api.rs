//! The example payments API: small, and as naive as the APIs that need a gateway. It ignores keys, except that its list
//! shows the key of each payment.
//!
//! `"simulate"` in a payment makes it misbehave: `"slow"` takes two seconds, `"lost"` takes the money and cuts the
//! connection in the middle of the response.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, pending, ready};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Once};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::gateway::server::{self, ServerLimits};

/// Serves the API for as long as it is polled.
pub(super) async fn serve(listener: TcpListener) {
    let books = Books::default();
    let service = tower::service_fn(move |request| {
        let books = books.clone();
        async move { Ok::<_, Infallible>(books.answer(request).await) }
    });
    server::serve(listener, service, ServerLimits::default(), pending()).await;
}

/// A response body that is complete at once, or cut.
pub(super) type ApiBody = StreamBody<Once<Ready<Result<Frame<Bytes>, CutError>>>>;

/// Error that ends a connection in the middle of a response.
#[derive(Debug, thiserror::Error)]
#[error("the response is cut, as requested")]
pub(super) struct CutError;

/// The payments made so far.
#[derive(Clone, Default)]
struct Books(Arc<Mutex<Page>>);

#[derive(Default)]
struct Page {
    count: u64,
    latest: VecDeque<Value>,
}

impl Books {
    async fn answer(&self, request: Request<Incoming>) -> Response<ApiBody> {
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/payments") => self.pay(request).await,
            (&Method::GET, "/payments") => {
                let page = self.0.lock();
                // One payment per line, so that they are easy to count.
                let lines: Vec<_> = page.latest.iter().map(Value::to_string).collect();
                let list = lines.join(",\n  ");
                json_response(
                    StatusCode::OK,
                    format!("{{\"count\":{},\"payments\":[\n  {list}\n]}}", page.count),
                )
            }
            _ => error_response(StatusCode::NOT_FOUND, "there is only /payments"),
        }
    }

    async fn pay(&self, request: Request<Incoming>) -> Response<ApiBody> {
        let key = request.headers().get("idempotency-key").cloned();
        let Ok(body) = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await else {
            return error_response(StatusCode::BAD_REQUEST, "the body can't be read");
        };
        let payment_request: Value = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
        let (Some(customer), Some(amount), Some(currency)) = (
            payment_request["customerId"].as_str(),
            payment_request["amountCents"].as_u64(),
            payment_request["currency"].as_str(),
        ) else {
            return error_response(StatusCode::BAD_REQUEST, "needs customerId, amountCents and currency");
        };
        if payment_request["simulate"] == "slow" {
            tokio::time::sleep(SLOW_FOR).await;
        }
        let payment = {
            let mut page = self.0.lock();
            page.count += 1;
            let payment = json!({
                "id": format!("pay_{}", page.count),
                "customerId": customer, "amountCents": amount, "currency": currency,
            });
            let mut line = payment.clone();
            line["idempotencyKey"] = key.as_ref().and_then(|key| key.to_str().ok()).into();
            page.latest.push_back(line);
            if page.latest.len() > LATEST_MAX {
                page.latest.pop_front();
            }
            payment
        };
        match payment_request["simulate"] == "lost" {
            true => cut_response(),
            false => json_response(StatusCode::CREATED, payment.to_string()),
        }
    }
}

pub(super) fn error_response(status: StatusCode, why: &str) -> Response<ApiBody> {
    json_response(status, json!({ "error": why }).to_string())
}

pub(super) fn json_response(status: StatusCode, mut text: String) -> Response<ApiBody> {
    text.push('\n');
    answer(status, text.len(), Ok(Frame::data(Bytes::from(text))))
}

/// Returns a response whose connection is cut before its body.
pub(super) fn cut_response() -> Response<ApiBody> {
    answer(StatusCode::CREATED, 1, Err(CutError))
}

fn answer(status: StatusCode, length: usize, body: Result<Frame<Bytes>, CutError>) -> Response<ApiBody> {
    let mut response = Response::new(StreamBody::new(stream::once(ready(body))));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    response
}

/// Duration of a slow payment: long enough to send a duplicate by hand, and shorter than the wait of a duplicate.
const SLOW_FOR: Duration = Duration::from_secs(2);

/// Largest request body; a payment has four fields.
pub(super) const BODY_BYTES_MAX: usize = 16 << 10;

/// Most payments in the list: no reader of a demo looks at more.
const LATEST_MAX: usize = 100;
