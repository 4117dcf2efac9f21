//! What a request carries, read strictly: unknown names are refused, bodies are bounded, and every refusal says why.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use serde::de::DeserializeOwned;

use crate::problem::Problem;

/// The query string.
pub(crate) struct Asked<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(value)) => Ok(Asked(value)),
            Err(error) => Err(Problem::invalid(format!("the query: {}", error.body_text()))),
        }
    }
}

/// One segment of the path.
pub(crate) struct At<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for At<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(At(value)),
            Err(error) => Err(Problem::invalid(format!("the path: {}", error.body_text()))),
        }
    }
}

/// The body.
pub(crate) struct Told<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Told<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        if !is_json(&request) {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            let problem = Problem::new(status, "unsupported-media-type", "The body has the wrong type");
            return Err(problem.detail("send JSON, with `Content-Type: application/json`"));
        }
        let bytes = axum::body::to_bytes(request.into_body(), BODY_MAX).await.map_err(|_| {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large")
                .detail(format!("a body has at most {BODY_MAX} bytes and comes to its end"))
        })?;
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Told(value)),
            Err(error) => Err(Problem::invalid(format!("the body: {error}"))),
        }
    }
}

fn is_json(request: &Request) -> bool {
    let value = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// An answer of a megabyte, escaped, or the names of five hundred records.
const BODY_MAX: usize = 2 << 20;
