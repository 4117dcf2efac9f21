//! The URI as the client sent it, before a nested router of axum cut its prefix off.

#[cfg(feature = "axum")]
use axum::extract::OriginalUri;
use http::{Extensions, Uri};

/// Returns the URI as the client sent it. A nested router sees only the rest of the path, and two of them would mistake each
/// other's records for their own.
#[cfg(feature = "axum")]
pub(super) fn original_uri<'a>(extensions: &'a Extensions, uri: &'a Uri) -> &'a Uri {
    extensions.get::<OriginalUri>().map_or(uri, |OriginalUri(uri)| uri)
}

/// Returns the URI as the client sent it: without axum, the one that the request has.
#[cfg(not(feature = "axum"))]
pub(super) fn original_uri<'a>(_: &'a Extensions, uri: &'a Uri) -> &'a Uri {
    uri
}

/// Sets the URI as the client sent it.
#[cfg(feature = "axum")]
pub(super) fn set_original_uri(extensions: &mut Extensions, uri: Uri) {
    extensions.insert(OriginalUri(uri));
}

/// Sets nothing: without axum, a request has one URI only.
#[cfg(not(feature = "axum"))]
pub(super) fn set_original_uri(_: &mut Extensions, _: Uri) {}
