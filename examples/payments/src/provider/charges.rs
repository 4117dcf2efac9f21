//! The processor's pages, and how each fault looks to the one who asked.

use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Query, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use serde_json::json;

use super::faults::{Dice, Fault};
use super::ledger::{Charge, ChargeRequest, ChargeStatus, Entry, Ledger};
use super::server::Connection;
use super::webhook::Webhooks;

/// All that the processor holds. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Processor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ledger: Mutex<Ledger>,
    dice: Mutex<Dice>,
    webhooks: Option<Webhooks>,
    busy: AtomicU64,
}

impl Processor {
    /// With these books, this luck, and somebody to tell.
    pub fn new(ledger: Ledger, dice: Dice, webhooks: Option<Webhooks>) -> Processor {
        let busy = AtomicU64::new(0);
        Processor(Arc::new(Inner { ledger: Mutex::new(ledger), dice: Mutex::new(dice), webhooks, busy }))
    }

    /// Its pages.
    pub fn router(self) -> Router {
        Router::new()
            .route("/charges", get(look).post(charge))
            .route("/health", get(async || "ok\n"))
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(self)
    }

    /// Makes the charge to its end even if nobody waits for it any more, as a processor does.
    async fn enter(&self, key: String, asked: ChargeRequest) -> std::io::Result<Entry> {
        let this = self.clone();
        let entered = tokio::task::spawn_blocking(move || {
            let entry = this.ledger().charge(&key, asked)?;
            if let (Entry::New(charge), Some(webhooks)) = (&entry, &this.0.webhooks) {
                webhooks.send(charge.clone());
            }
            Ok(entry)
        });
        entered.await.map_err(std::io::Error::other)?
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Nothing in there panics between its file and its list.
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dice(&self) -> MutexGuard<'_, Dice> {
        // No roll panics half-way.
        self.0.dice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn busy(&self, after: Duration) -> Response {
        let turn = self.0.busy.fetch_add(1, Ordering::Relaxed);
        let status = if turn.is_multiple_of(2) {
            StatusCode::SERVICE_UNAVAILABLE
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        let mut answer = refused(status, "try again later");
        // The field knows whole seconds; less than asked for would be a lie.
        answer.headers_mut().insert(
            header::RETRY_AFTER,
            after.as_millis().div_ceil(1000).max(1).to_string().parse().expect("digits"),
        );
        answer
    }
}

async fn charge(
    State(processor): State<Processor>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Some(key) = key_of(&headers) else {
        return refused(StatusCode::BAD_REQUEST, "one `Idempotency-Key` of 1 to 255 visible characters");
    };
    let traceparent = headers.get("traceparent").and_then(|line| line.to_str().ok()).map(str::to_owned);
    let asked: ChargeRequest = match serde_json::from_slice(&body) {
        Ok(asked) => ChargeRequest { traceparent, ..asked },
        Err(error) => return refused(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    if asked.amount_cents <= 0 {
        return refused(StatusCode::BAD_REQUEST, "`amountCents` must be positive");
    }
    let fault = processor.dice().roll(&key);
    match fault {
        Some(Fault::Refuse) => return refused(StatusCode::INTERNAL_SERVER_ERROR, "something broke"),
        Some(Fault::Busy(after)) => return processor.busy(after),
        _ => {}
    }
    let charge = match processor.enter(key, asked).await {
        Ok(Entry::New(charge) | Entry::Again(charge)) => charge,
        Ok(Entry::Reused) => {
            return refused(StatusCode::UNPROCESSABLE_ENTITY, "the key stands for another charge");
        }
        Err(error) => {
            tracing::error!(%error, "the charge can't be kept");
            return refused(StatusCode::INTERNAL_SERVER_ERROR, "the charge can't be kept");
        }
    };
    match fault {
        // The client hangs up, and this future is dropped with its connection.
        Some(Fault::Timeout) => pending().await,
        Some(Fault::Reset) => {
            connection.reset();
            pending().await
        }
        // The same words as without a charge: nobody outside can tell the two apart.
        Some(Fault::Error) => return refused(StatusCode::INTERNAL_SERVER_ERROR, "something broke"),
        Some(Fault::Late(length)) => tokio::time::sleep(length).await,
        Some(Fault::Refuse | Fault::Busy(_)) | None => {}
    }
    answer(&charge)
}

#[derive(Deserialize)]
struct Look {
    idempotency_key: Option<String>,
    #[serde(default)]
    after: usize,
    limit: Option<usize>,
}

/// One charge by its key, or a page of them: all, unless the asker wants fewer.
async fn look(State(processor): State<Processor>, Query(look): Query<Look>) -> Response {
    let ledger = processor.ledger();
    match look.idempotency_key {
        Some(key) => match ledger.find(&key) {
            Some(charge) => Json(charge).into_response(),
            None => refused(StatusCode::NOT_FOUND, "no charge under this key"),
        },
        None => {
            // How often it was asked for a charge, beside how often it made one.
            let requests = processor.dice().requests();
            let page: Vec<_> =
                ledger.all().iter().skip(look.after).take(look.limit.unwrap_or(usize::MAX)).collect();
            let list = json!({ "requests": requests, "count": ledger.all().len(), "charges": page });
            Json(list).into_response()
        }
    }
}

fn answer(charge: &Charge) -> Response {
    let status = match charge.status {
        ChargeStatus::Succeeded => StatusCode::CREATED,
        ChargeStatus::Declined => StatusCode::PAYMENT_REQUIRED,
    };
    (status, Json(charge)).into_response()
}

fn refused(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "error": why }))).into_response()
}

/// The key, bare or in quotes.
fn key_of(headers: &HeaderMap) -> Option<String> {
    let mut lines = headers.get_all("idempotency-key").iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    let text = line.to_str().ok()?.trim();
    let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let fits = (1..=KEY_CHARS_MAX).contains(&bare.len()) && bare.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| bare.to_owned())
}

/// As long as keys are elsewhere.
const KEY_CHARS_MAX: usize = 255;

/// A charge has four fields.
const BODY_BYTES_MAX: usize = 16 << 10;
