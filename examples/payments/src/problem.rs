//! Error responses (RFC 9457).

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use ibid::transaction::TxError;
use serde_json::{Value, json};

/// Reason for refusing a request, as a response.
#[derive(Clone, Debug)]
pub struct Problem {
    status: StatusCode,
    detail: String,
    errors: Vec<Value>,
}

impl Problem {
    /// Creates a problem with this status and explanation.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        Problem { status, detail: detail.into(), errors: Vec::new() }
    }

    /// Returns 401: the request has no token, or an unknown one.
    pub fn unauthorized() -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, "send `Authorization: Bearer` and a known token")
    }

    /// Returns 404, also for what another account owns, so that a client cannot find out which ids exist.
    pub fn not_found() -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "there is no such resource")
    }

    /// Returns 422 with all invalid fields, each as its name and what it must be.
    pub fn invalid(errors: Vec<(String, String)>) -> Problem {
        let errors = errors.into_iter().map(|(field, detail)| json!({ "field": field, "detail": detail }));
        let errors = errors.collect();
        Problem { errors, ..Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "some fields are not valid") }
    }

    /// Returns 503, because the database or the processor did not answer. The client may retry. The cause is logged, and
    /// not shown to the client.
    pub fn unavailable(error: &dyn std::error::Error) -> Problem {
        tracing::error!(error = %error, cause = ?error.source(), "request failed; the client may retry");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "try again later")
    }
}

impl<E: Into<TxError>> From<E> for Problem {
    fn from(error: E) -> Problem {
        Problem::unavailable(&error.into())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if !self.errors.is_empty() {
            body["errors"] = self.errors.into();
        }
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match self.status {
            StatusCode::UNAUTHORIZED => headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
            // Two seconds: long enough for the pool to reconnect after the database restarts.
            StatusCode::SERVICE_UNAVAILABLE => headers.insert(RETRY_AFTER, HeaderValue::from_static("2")),
            _ => None,
        };
        response
    }
}
