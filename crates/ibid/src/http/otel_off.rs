//! Nobody collects spans: contexts are passed on as they came.

use tracing::Span;

use super::trace::TraceContext;

pub(super) fn adopt(_: &Span, _: &TraceContext) {}

pub(super) fn own(_: &Span) -> Option<TraceContext> {
    None
}

pub(super) fn link(_: &Span, _: &TraceContext) {}
