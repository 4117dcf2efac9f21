//! Support for axum: extractors and responses for handlers.

use axum::extract::FromRequestParts;
use axum::http::header::RETRY_AFTER;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

pub use crate::http::{GuardedRequest, HeldAttempt, UnreservedRequest};

use crate::http::ReserveError;
use crate::outcome::Outcome;
use crate::transaction::{TxError, TxResponse};

impl<S: Sync> FromRequestParts<S> for GuardedRequest {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        // Without the layer the handler would run unguarded, and by this extractor it asked not to.
        let missing = (StatusCode::INTERNAL_SERVER_ERROR, "this handler is not behind an ibid guard");
        parts.extensions.get::<GuardedRequest>().cloned().ok_or(missing)
    }
}

impl<S: Sync> FromRequestParts<S> for HeldAttempt {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let missing = "this handler is not behind an ibid guard that reserves its key";
        HeldAttempt::take(&parts.extensions).ok_or((StatusCode::INTERNAL_SERVER_ERROR, missing))
    }
}

impl<S: Sync> FromRequestParts<S> for UnreservedRequest {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let missing = "this handler is not on a route of an ibid guard whose keys it reserves itself";
        parts
            .extensions
            .get::<UnreservedRequest>()
            .cloned()
            .ok_or((StatusCode::INTERNAL_SERVER_ERROR, missing))
    }
}

/// Lets a handler return the outcome of its transaction. The layer responds with what is stored, so this response is sent only
/// if nothing is.
impl IntoResponse for Outcome {
    fn into_response(self) -> Response {
        match self {
            Outcome::Completed(_) | Outcome::NotRetained(_) | Outcome::AwaitingEffect => {
                StatusCode::NO_CONTENT.into_response()
            }
            _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        }
    }
}

/// Lets a handler return the response of its transaction. The layer sends what is stored, so this is sent only where
/// nothing is.
impl IntoResponse for TxResponse {
    fn into_response(self) -> Response {
        let Some(response) = self.into_inner() else { return StatusCode::NO_CONTENT.into_response() };
        let Ok(status) = StatusCode::from_u16(response.status) else {
            tracing::error!(
                status = response.status,
                "handler responded with an invalid status; responding 500"
            );
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        };
        let lines = response.headers.iter().filter_map(|(name, value)| {
            Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_bytes(value).ok()?))
        });
        (status, lines.collect::<HeaderMap>(), response.body).into_response()
    }
}

/// Lets a handler return the error with `?`: nothing was done, and the client may retry.
impl IntoResponse for TxError {
    fn into_response(self) -> Response {
        tracing::warn!(error = &self as &dyn std::error::Error, "transaction not committed");
        match self {
            // A retry would fail as well.
            TxError::Work(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            _ => (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")]).into_response(),
        }
    }
}

/// Lets a handler return the error with `?`: the layer has the response, or nothing was done.
impl IntoResponse for ReserveError {
    fn into_response(self) -> Response {
        match self {
            ReserveError::Answered => StatusCode::NO_CONTENT.into_response(),
            ReserveError::Failed(error) => error.into_response(),
        }
    }
}
