//! What only axum knows: the extractor for handlers, and the address that a nested router has cut.

use axum::extract::{FromRequestParts, OriginalUri};
use axum::http::header::RETRY_AFTER;
use axum::http::request::Parts;
use axum::http::{Extensions, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

pub use crate::http::{Guarded, Held, Unbegun};

use crate::attempt::Finished;
use crate::http::NotRun;
use crate::transaction::TxError;

impl<S: Sync> FromRequestParts<S> for Guarded {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        // Without the guard the handler would run unguarded, which it asked not to.
        let missing = (StatusCode::INTERNAL_SERVER_ERROR, "this handler is not behind an ibid guard");
        parts.extensions.get::<Guarded>().cloned().ok_or(missing)
    }
}

impl<S: Sync> FromRequestParts<S> for Held {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let missing = "this handler is not behind an ibid guard that reserves its key";
        Held::take(&parts.extensions).ok_or((StatusCode::INTERNAL_SERVER_ERROR, missing))
    }
}

impl<S: Sync> FromRequestParts<S> for Unbegun {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let missing = "this handler is not on a route of an ibid guard whose keys it reserves itself";
        parts.extensions.get::<Unbegun>().cloned().ok_or((StatusCode::INTERNAL_SERVER_ERROR, missing))
    }
}

/// For handlers to return: the guard answers with what is stored, so this is seen only where nothing is.
impl IntoResponse for Finished {
    fn into_response(self) -> Response {
        match self {
            Finished::Stored(_) | Finished::StoredUnkept(_) | Finished::Owed => {
                StatusCode::NO_CONTENT.into_response()
            }
            Finished::Freed | Finished::Unsettled { .. } | Finished::NotStored | Finished::Superseded(_) => {
                StatusCode::SERVICE_UNAVAILABLE.into_response()
            }
        }
    }
}

/// For handlers to return with `?`: nothing was done, and the same request may be sent again.
impl IntoResponse for TxError {
    fn into_response(self) -> Response {
        tracing::warn!(error = &self as &dyn std::error::Error, "a transaction was not committed");
        (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")]).into_response()
    }
}

/// For handlers to return with `?`: the guard has the answer, or nothing was done.
impl IntoResponse for NotRun {
    fn into_response(self) -> Response {
        match self {
            NotRun::Answered => StatusCode::NO_CONTENT.into_response(),
            NotRun::Failed(error) => error.into_response(),
        }
    }
}

/// The address as the client sent it. A nested router sees only the rest of the path, and two of them would take each
/// other's records for their own.
pub(crate) fn sent<'a>(extensions: &'a Extensions, uri: &'a Uri) -> &'a Uri {
    extensions.get::<OriginalUri>().map_or(uri, |OriginalUri(uri)| uri)
}

/// Says how the client sent an address.
pub(crate) fn was_sent(extensions: &mut Extensions, uri: Uri) {
    extensions.insert(OriginalUri(uri));
}
