//! Error responses (RFC 9457).

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use ibid::transaction::TxError;
use serde_json::{Value, json};

/// Why a request was refused.
#[derive(Clone, Debug)]
pub struct Problem {
    status: StatusCode,
    detail: String,
    errors: Vec<Value>,
}

impl Problem {
    /// A problem with this status.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        Problem { status, detail: detail.into(), errors: Vec::new() }
    }

    /// No known credential.
    pub fn unauthorized() -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, "send `Authorization: Bearer` and a known token")
    }

    /// Nothing there that this account may see.
    pub fn not_found() -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "there is no such thing")
    }

    /// Invalid fields, each as name and what it must be.
    pub fn invalid(errors: Vec<(String, String)>) -> Problem {
        let errors = errors.into_iter().map(|(field, detail)| json!({ "field": field, "detail": detail }));
        let errors = errors.collect();
        Problem { errors, ..Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "some fields are not valid") }
    }

    /// The database or the processor did not answer. The client may retry; the cause is for the log only.
    pub fn unavailable(error: &dyn std::error::Error) -> Problem {
        tracing::error!(error = %error, cause = ?error.source(), "a request failed");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "try again later")
    }
}

impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Problem {
        Problem::unavailable(&error)
    }
}

impl From<TxError> for Problem {
    fn from(error: TxError) -> Problem {
        Problem::unavailable(&error)
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
            // Long enough for a pool to reconnect after the database restarts.
            StatusCode::SERVICE_UNAVAILABLE => headers.insert(RETRY_AFTER, HeaderValue::from_static("2")),
            _ => None,
        };
        response
    }
}
