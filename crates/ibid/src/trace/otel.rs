//! The spans of a request in OpenTelemetry, if the process collects them. Without the feature `opentelemetry` nothing is
//! collected, and trace contexts are passed on as they came.

pub(super) use imp::{adopt, link, own};

#[cfg(feature = "opentelemetry")]
mod imp {
    use opentelemetry::Context;
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    use crate::trace::TraceContext;

    /// Makes a span that has not begun a child of the caller's span.
    pub(crate) fn adopt(span: &Span, parent: &TraceContext) {
        // This fails if the span is not collected, and then it needs no parent.
        let _ = span.set_parent(Context::new().with_remote_span_context(remote(parent)));
    }

    /// Returns the context of a span that is collected.
    pub(crate) fn own(span: &Span) -> Option<TraceContext> {
        if span.is_disabled() {
            return None;
        }
        let context = span.context();
        let active = context.span();
        let own = active.span_context();
        own.is_valid().then(|| {
            let trace_id = u128::from_be_bytes(own.trace_id().to_bytes());
            let span_id = u64::from_be_bytes(own.span_id().to_bytes());
            TraceContext::new(trace_id, span_id, own.trace_flags().to_u8(), own.trace_state().header())
        })
    }

    /// Links a span to another trace that it follows from.
    pub(crate) fn link(span: &Span, to: &TraceContext) {
        span.add_link(remote(to));
    }

    fn remote(context: &TraceContext) -> SpanContext {
        let (trace_id, span_id, flags, state) = context.parts();
        let state = state.and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
        let (trace_id, span_id) =
            (TraceId::from_bytes(trace_id.to_be_bytes()), SpanId::from_bytes(span_id.to_be_bytes()));
        SpanContext::new(trace_id, span_id, TraceFlags::new(flags), true, state)
    }
}

#[cfg(not(feature = "opentelemetry"))]
mod imp {
    use tracing::Span;

    use crate::trace::TraceContext;

    pub(crate) fn adopt(_: &Span, _: &TraceContext) {}

    pub(crate) fn own(_: &Span) -> Option<TraceContext> {
        None
    }

    pub(crate) fn link(_: &Span, _: &TraceContext) {}
}
