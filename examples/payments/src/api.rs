//! The API: in which order a request meets its stops.
//!
//! From the outside in: who is it ([`crate::account`]), can it be carried out as written ([`crate::intake`]), was it here
//! before (`guard`), and only then what writes. `GET` needs no key and changes nothing.

mod guard;
mod payments;
mod rides;
mod show;

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRef, State};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use bytes::Bytes;
use ibid::Ibid;
use ibid::core::response::Response as KeptResponse;
use ibid::http::hooks::HookSecret;
use serde_json::{Value, json};

use crate::account::{Authentication, authenticate};
use crate::charge::InDoubt;
use crate::db::{Backend, Db, DbError};
use crate::intake::{PAYMENTS, RIDES, check_input};
use crate::listen::Failure;
use crate::problem::Problem;
use crate::provider_client::ProviderClient;

/// What the handlers work with.
#[derive(Clone, Debug)]
pub struct App<D> {
    /// To read from.
    pub db: Db,
    /// To write to, together with the record.
    pub database: D,
    /// The processor, for attempts that are kept alive while they wait for it.
    pub patient_provider: ProviderClient,
    /// How long a holder may be silent.
    pub lease: Duration,
    /// What is done about a charge whose answer was lost.
    pub in_doubt: InDoubt,
}

/// All pages.
pub fn router<D: Backend>(
    app: App<D>,
    ibid: Ibid,
    authentication: Authentication,
    hook: Option<HookSecret>,
) -> Result<Router, Failure> {
    let guard = guard::guard(ibid, app.lease, hook)?;
    let pages = Router::new()
        .route(PAYMENTS, get(show::payments).post(payments::create))
        .route("/payments/{id}", get(show::payment))
        .route(RIDES, post(rides::create))
        .route("/rides/{id}", get(show::ride))
        // The guard's own pages: what became of a key, and the processor's webhooks. It answers them before anybody gets
        // here.
        .route("/.ibid/{*page}", any(async || Problem::not_found()))
        .with_state(app.clone());
    // The sweeper runs lapsed rides on the pages themselves: it has no credential to show, and a key already.
    let guard = guard.resumes::<_, Body, _>(pages.clone());
    // The last layer is the first that a request meets. The guard is inside of both others, so that nobody unknown and
    // nothing malformed uses up a key.
    let pages = pages
        .layer(guard)
        .layer(from_fn(check_input))
        .layer(from_fn_with_state(authentication, authenticate));
    Ok(Router::new()
        .route("/health", get(health))
        .with_state(app.db)
        .merge(pages)
        .fallback(async || Problem::not_found()))
}

/// An answer as the record keeps it, for every retry.
fn kept_answer(status: u16, location: &str, body: &Value) -> KeptResponse {
    let mut answer = KeptResponse::plain(status, "application/json", body.to_string());
    answer.headers.push(("location".to_owned(), Bytes::copy_from_slice(location.as_bytes())));
    answer
}

impl<D> FromRef<App<D>> for Db {
    fn from_ref(app: &App<D>) -> Db {
        app.db.clone()
    }
}

/// For whoever restarts nodes and balances load: it says that the database answers, and nothing more.
async fn health(State(db): State<Db>) -> Response {
    match db.ping().await {
        Ok(()) => Json(json!({ "status": "ok" })).into_response(),
        Err(error) => Problem::from(error).into_response(),
    }
}

/// Details are for the log: a client can do nothing with them.
impl From<DbError> for Problem {
    fn from(error: DbError) -> Problem {
        tracing::error!(error = &error as &dyn std::error::Error, "the database failed");
        Problem::unavailable()
    }
}
