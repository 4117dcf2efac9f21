//! The API: in which order a request meets its stops, and the pages that only read.
//!
//! From the outside in: who is it ([`crate::account`]), can it be carried out as written ([`crate::intake`]), and only
//! then what writes. `GET` needs no key and changes nothing.

mod show;

use axum::extract::State;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get};
use axum::{Json, Router};
use serde_json::json;

use crate::account::{Authentication, authenticate};
use crate::db::{Db, DbError};
use crate::intake::{PAYMENTS, RIDES, check_input};
use crate::problem::Problem;

/// All pages.
pub fn router(db: Db, authentication: Authentication) -> Router {
    let pages = Router::new()
        .route(PAYMENTS, get(show::payments))
        .route("/payments/{id}", get(show::payment))
        .route(RIDES, MethodRouter::new())
        .route("/rides/{id}", get(show::ride))
        // The last layer is the first that a request meets. The guard of keys belongs above these two lines: inside
        // of both, so that nobody unknown and nothing malformed uses up a key.
        .layer(from_fn(check_input))
        .layer(from_fn_with_state(authentication, authenticate));
    Router::new()
        .route("/health", get(health))
        .merge(pages)
        .fallback(async || Problem::not_found())
        .with_state(db)
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
