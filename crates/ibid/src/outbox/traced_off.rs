//! Nobody collects spans: an Effect's trace is only handed on to its handler.

use tracing::Span;

pub(super) fn go_on(_: &Span, _: &str) {}
