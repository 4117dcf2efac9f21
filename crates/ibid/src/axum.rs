//! The extractor for axum handlers, and nothing else.

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;

pub use crate::http::Guarded;

impl<S: Sync> FromRequestParts<S> for Guarded {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        // Without the guard the handler would run unguarded, which it asked not to.
        let missing = (StatusCode::INTERNAL_SERVER_ERROR, "this handler is not behind an ibid guard");
        parts.extensions.get::<Guarded>().cloned().ok_or(missing)
    }
}
