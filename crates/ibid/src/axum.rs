//! What only axum knows: the extractor for handlers, and the address that a nested router has cut.

use axum::extract::{FromRequestParts, OriginalUri};
use axum::http::request::Parts;
use axum::http::{Extensions, StatusCode, Uri};

pub use crate::http::Guarded;

impl<S: Sync> FromRequestParts<S> for Guarded {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        // Without the guard the handler would run unguarded, which it asked not to.
        let missing = (StatusCode::INTERNAL_SERVER_ERROR, "this handler is not behind an ibid guard");
        parts.extensions.get::<Guarded>().cloned().ok_or(missing)
    }
}

/// The address as the client sent it. A nested router sees only the rest of the path, and two of them would take each
/// other's records for their own.
pub(crate) fn sent<'a>(extensions: &'a Extensions, uri: &'a Uri) -> &'a Uri {
    extensions.get::<OriginalUri>().map_or(uri, |OriginalUri(uri)| uri)
}
