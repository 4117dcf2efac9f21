//! The trace of the request that enqueued an effect, on both databases: the call gets it, and the worker's span is part
//! of it.

use std::sync::{Arc, Mutex};

use ibid::outbox::{
    CallOutcome, EffectCall, EffectHandler, NewEffect, RawPayload, VerifyOutcome, Worker, WorkerRound,
};
use ibid::outcome::Begin;
use ibid::transaction::Database;
use ibid_core::response::Response;

use super::every_database::{Site, lost, on_every_database, settled_at_once};
use super::harness::{ask, made_outcome};

on_every_database!(a_call_gets_the_trace_of_the_enqueuing_request);

async fn a_call_gets_the_trace_of_the_enqueuing_request<D: Database + Clone + 'static>(site: Site<D>) {
    let effect = settled_at_once().verified();
    let own = NewEffect { trace: Some(OTHER.to_owned()), ..effect.clone() };
    pay(&site, "traced", Some(TRACE), effect.clone()).await;
    pay(&site, "own trace", Some(TRACE), own).await;
    pay(&site, "untraced", None, effect).await;
    // By a process that knows only the stored effect.
    let other = site.another_process().await;
    let recorder = CallRecorder::default();
    let worker = Worker::builder(other.ibid, other.database).on("charge", recorder.clone()).build().unwrap();
    let (again, done) = (
        WorkerRound::default().with(|round| round.again = 3),
        WorkerRound::default().with(|round| round.done = 3),
    );
    for round in [again, again, done] {
        assert_eq!(worker.run_once().await.unwrap(), round);
        site.lapse().await;
    }
    for (key, trace) in [("traced", Some(TRACE)), ("own trace", Some(OTHER)), ("untraced", None)] {
        let effect = site.effect(key).await;
        assert_eq!(effect.trace.as_deref(), trace, "{key}");
        let calls: Vec<_> =
            recorder.0.lock().unwrap().iter().filter(|call| call.record == effect.record).cloned().collect();
        let traces: Vec<_> = calls.iter().map(|call| call.trace.as_deref()).collect();
        assert_eq!(traces, [trace; 3], "{key}: called, asked about, called again");
    }
}

/// Makes a payment whose client sent this trace.
async fn pay<D: Database + Clone + 'static>(
    site: &Site<D>,
    key: &str,
    trace: Option<&str>,
    effect: NewEffect,
) {
    let mut ask = ask(&site.ibid, key);
    ask.trace = trace.map(str::to_owned);
    let Begin::Run(mut attempt) = site.ibid.begin(ask).await.unwrap() else { panic!("not to be run") };
    let mut inside = attempt.join_tx(site.database.begin().await.unwrap()).await.unwrap();
    inside.enqueue(effect).await.unwrap();
    let _ = inside.finish(Response::plain(201, "text/plain", String::new())).await.unwrap();
}

/// Records its calls. The first call of each effect is lost, and was not made.
#[derive(Clone, Default)]
struct CallRecorder(Arc<Mutex<Vec<EffectCall>>>);

impl<T: Send> EffectHandler<T> for CallRecorder {
    type Payload = RawPayload;

    async fn call(&self, call: &EffectCall) -> CallOutcome {
        self.0.lock().unwrap().push(call.clone());
        if call.tries == 1 { lost() } else { made_outcome() }
    }

    async fn verify(&self, call: &EffectCall) -> VerifyOutcome {
        self.0.lock().unwrap().push(call.clone());
        VerifyOutcome::NotMade
    }
}

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const OTHER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The spans of a worker, as a collector receives them.
#[cfg(feature = "opentelemetry")]
mod exported_spans {
    use ibid::http::TraceContext;
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[tokio::test]
    async fn a_workers_span_continues_the_requests_trace_on_sqlite() {
        a_workers_span_continues_the_requests_trace(super::super::every_database::sqlite().await).await;
    }

    #[cfg(all(feature = "postgres", feature = "sqlx-postgres"))]
    #[tokio::test]
    async fn a_workers_span_continues_the_requests_trace_on_postgres() {
        a_workers_span_continues_the_requests_trace(super::super::every_database::postgres().await).await;
    }

    async fn a_workers_span_continues_the_requests_trace<D: Database + Clone + 'static>(site: Site<D>) {
        pay(&site, "k", Some(TRACE), settled_at_once()).await;
        let (spans, passed_on) = (Spans::default(), PassesOn::default());
        let collector = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(collector.tracer("ibid"));
        // A subscriber for this thread only, on which all tasks of this test run.
        let collecting = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        let worker =
            Worker::builder(site.ibid.clone(), site.database.clone()).on("charge", passed_on.clone());
        assert_eq!(worker.build().unwrap().run_once().await.unwrap().done, 1);
        drop(collecting);

        let spans = spans.0.lock().unwrap();
        let [span] = &spans.iter().filter(|span| span.name == "ibid.effect").collect::<Vec<_>>()[..] else {
            panic!("one call has one span: {spans:?}")
        };
        assert_eq!(span.span_context.trace_id().to_string(), TRACE[3..35]);
        assert_eq!(span.parent_span_id.to_string(), TRACE[36..52]);
        // The handler passes on the worker's span.
        let here = format!("00-{}-{}-01", span.span_context.trace_id(), span.span_context.span_id());
        assert_eq!(*passed_on.0.lock().unwrap(), [here]);
    }

    /// A handler that passes the trace on, as to a provider.
    #[derive(Clone, Default)]
    struct PassesOn(Arc<Mutex<Vec<String>>>);

    impl<T: Send> EffectHandler<T> for PassesOn {
        type Payload = RawPayload;

        async fn call(&self, call: &EffectCall) -> CallOutcome {
            let trace = call.trace.as_deref().and_then(TraceContext::parse).expect("a trace");
            self.0.lock().unwrap().push(trace.next().to_string());
            made_outcome()
        }
    }

    #[derive(Clone, Debug, Default)]
    struct Spans(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for Spans {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().unwrap().extend(batch);
            Ok(())
        }
    }
}
