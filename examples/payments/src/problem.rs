//! Answers that say no (RFC 9457), in one form.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{HeaderName, StatusCode};
use serde_json::{Value, json};

/// Why a request was turned away.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: Option<String>,
    errors: Vec<FieldError>,
    header: Option<(HeaderName, HeaderValue)>,
}

/// What is wrong with one field of a body or a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The field as the client wrote it, or as it should have.
    pub field: String,
    /// What it must be.
    pub detail: String,
}

impl FieldError {
    /// What is wrong with this field.
    pub fn new(field: impl Into<String>, detail: impl Into<String>) -> FieldError {
        FieldError { field: field.into(), detail: detail.into() }
    }
}

impl Problem {
    /// No credential, or none that is known: which of the two is not said.
    pub fn unauthorized() -> Problem {
        let mut problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "Who are you?");
        problem.detail = Some("send `Authorization: Bearer` and a token that is known here".to_owned());
        problem.header = Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        problem
    }

    /// Fields that can't be accepted, each with its name.
    pub fn invalid(errors: Vec<FieldError>) -> Problem {
        let mut problem =
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-input", "The input is not valid");
        problem.errors = errors;
        problem
    }

    /// A body that is no JSON object.
    pub fn malformed(detail: impl Into<String>) -> Problem {
        let mut problem = Problem::new(StatusCode::BAD_REQUEST, "malformed-body", "The body can't be read");
        problem.detail = Some(detail.into());
        problem
    }

    /// A body of another kind.
    pub fn media_type() -> Problem {
        let mut problem = Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported-media-type",
            "The body has the wrong type",
        );
        problem.detail = Some("send JSON, with `Content-Type: application/json`".to_owned());
        problem
    }

    /// A body over the limit.
    pub fn too_large(bytes_max: usize) -> Problem {
        let mut problem = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large");
        problem.detail = Some(format!("a body may have {bytes_max} bytes"));
        problem
    }

    /// A body that did not come to its end.
    pub fn too_slow() -> Problem {
        Problem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", "The body took too long")
    }

    /// Nothing there that this account may see.
    pub fn not_found() -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not-found", "There is no such thing")
    }

    /// The database did not do what it should. What exactly is for the log.
    pub fn unavailable() -> Problem {
        let mut problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Try again later");
        problem.header = Some((http::header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS)));
        problem
    }

    fn new(status: StatusCode, kind: &'static str, title: &'static str) -> Problem {
        Problem { status, kind, title, detail: None, errors: Vec::new(), header: None }
    }

    fn body(&self) -> Value {
        let mut body = json!({
            "type": format!("urn:payments:problem:{}", self.kind),
            "title": self.title,
            "status": self.status.as_u16(),
        });
        if let Some(detail) = &self.detail {
            body["detail"] = detail.as_str().into();
        }
        if !self.errors.is_empty() {
            let errors = self.errors.iter().map(|e| json!({ "field": e.field, "detail": e.detail }));
            body["errors"] = errors.collect();
        }
        body
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some((name, value)) = self.header {
            headers.insert(name, value);
        }
        response
    }
}

/// Long enough for a pool to get its connections back after a restart of the database.
const RETRY_AFTER_SECONDS: &str = "2";
