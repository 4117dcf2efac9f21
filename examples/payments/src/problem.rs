//! Error responses (RFC 9457).

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use serde_json::{Value, json};

/// Reason for refusing a request, as a response.
#[derive(Clone, Debug)]
pub struct Problem {
    status: StatusCode,
    body: Value,
}

impl Problem {
    /// Creates a problem with this status and explanation.
    pub fn new(status: StatusCode, detail: &str) -> Problem {
        let title = status.canonical_reason();
        let body =
            json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail });
        Problem { status, body }
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
    pub fn invalid(errors: Vec<Value>) -> Problem {
        let mut problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "some fields are not valid");
        problem.body["errors"] = errors.into();
        problem
    }
}

/// Any error is a 503, because the database or the processor did not answer. The client may retry. The cause is logged, and
/// not shown to the client.
impl<E: std::error::Error> From<E> for Problem {
    fn from(error: E) -> Problem {
        tracing::error!(?error, "request failed; the client may retry");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "try again later")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let headers = [(CONTENT_TYPE, "application/problem+json"), (CACHE_CONTROL, "no-store")];
        let hint = match self.status {
            StatusCode::UNAUTHORIZED => Some([(WWW_AUTHENTICATE, "Bearer")]),
            // Two seconds: long enough for the pool to reconnect after the database restarts.
            StatusCode::SERVICE_UNAVAILABLE => Some([(RETRY_AFTER, "2")]),
            _ => None,
        };
        (self.status, headers, hint, Json(self.body)).into_response()
    }
}
