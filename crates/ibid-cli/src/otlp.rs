//! Sends spans to a collector by OTLP over HTTP, if the usual `OTEL_…` variables name one. Without the feature `otlp` it
//! sends none.
//!
//! Plain HTTP only: the collector runs next to the gateway and forwards the spans, with its own TLS and credentials.

#[cfg(feature = "otlp")]
pub(crate) use sending::Spans;
#[cfg(not(feature = "otlp"))]
pub(crate) use stand_in::NoSpans as Spans;

/// Variables that name the collector, the more specific one first.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

#[cfg(not(feature = "otlp"))]
mod stand_in {
    use tracing_subscriber::layer::Identity;

    use super::ENDPOINTS;
    use crate::output::Failure;

    /// A stand-in that sends no spans.
    pub(crate) struct NoSpans {
        /// Set if the variables name a collector.
        is_wanted: bool,
    }

    impl NoSpans {
        pub(crate) fn of_process() -> Result<NoSpans, Failure> {
            let is_named = |name| std::env::var_os(name).is_some_and(|endpoint| !endpoint.is_empty());
            Ok(NoSpans { is_wanted: ENDPOINTS.into_iter().any(is_named) })
        }

        pub(crate) fn layer(&self) -> Option<Identity> {
            None
        }

        /// Returns a warning for the log, if there is one.
        pub(crate) fn warning(&self) -> Option<&'static str> {
            self.is_wanted.then_some("this ibid was built without `otlp`: no spans are sent")
        }
    }
}

#[cfg(feature = "otlp")]
mod sending {
    use std::fmt;
    use std::future::Future;
    use std::pin::Pin;
    use std::time::Duration;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full, Limited};
    use hyper_util::client::legacy::Client;
    use hyper_util::client::legacy::connect::HttpConnector;
    use hyper_util::rt::TokioExecutor;
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_http::{HttpClient, HttpError};
    use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tokio::runtime::Runtime;
    use tracing::{Level, Subscriber};
    use tracing_subscriber::Layer;
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::registry::LookupSpan;

    use super::ENDPOINTS;
    use crate::output::Failure;

    /// Sends spans to a collector, if one is named.
    pub(crate) struct Spans(Option<SdkTracerProvider>);

    impl Spans {
        /// Reads the variables; sends nothing if they name no collector.
        pub(crate) fn of_process() -> Result<Spans, Failure> {
            let of = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
            let Some((name, endpoint)) = ENDPOINTS.iter().find_map(|name| Some((*name, of(name)?))) else {
                return Ok(Spans(None));
            };
            if of("OTEL_SDK_DISABLED").is_some_and(|word| word.eq_ignore_ascii_case("true")) {
                return Ok(Spans(None));
            }
            if !endpoint.starts_with("http://") {
                return Err(Failure::usage(format!("`{name}` is `{endpoint}`"))
                    .because("spans are sent over plain HTTP only")
                    .hint("run a collector next to the gateway, such as `http://127.0.0.1:4318`"));
            }
            let refused = |error: &dyn fmt::Display| {
                Failure::usage(format!("spans can't be sent to `{endpoint}`")).because(error.to_string())
            };
            let plain = Plain::new().map_err(|error| refused(&error))?;
            let exporter = SpanExporter::builder().with_http().with_http_client(plain).build();
            let exporter = exporter.map_err(|error| refused(&error))?;
            let resource = Resource::builder();
            let resource = match of("OTEL_SERVICE_NAME") {
                Some(_) => resource,
                None => resource.with_service_name("ibid"),
            };
            let provider = SdkTracerProvider::builder()
                .with_batch_exporter(exporter)
                .with_resource(resource.build())
                .build();
            Ok(Spans(Some(provider)))
        }

        /// Returns the layer that collects ibid's own spans.
        pub(crate) fn layer<S>(&self) -> Option<impl Layer<S> + use<S>>
        where
            S: Subscriber + for<'span> LookupSpan<'span>,
        {
            let tracer = self.0.as_ref()?.tracer("ibid");
            let layer = tracing_opentelemetry::layer()
                .with_location(false)
                .with_threads(false)
                .with_tracked_inactivity(false)
                .with_tracer(tracer);
            Some(layer.with_filter(Targets::new().with_target("ibid", Level::DEBUG)))
        }

        /// Returns a warning for the log: never one in this build.
        pub(crate) fn warning(&self) -> Option<&'static str> {
            None
        }
    }

    impl Drop for Spans {
        /// Sends the remaining spans, for [`LAST_SPANS_FOR`] at most.
        fn drop(&mut self) {
            if let Some(provider) = &self.0
                && let Err(error) = provider.shutdown_with_timeout(LAST_SPANS_FOR)
            {
                tracing::warn!(%error, "last spans not sent");
            }
        }
    }

    /// An HTTP client that runs only on the thread that sends spans, so that it never uses the gateway's threads.
    struct Plain {
        runtime: Runtime,
        client: Client<HttpConnector, Full<Bytes>>,
    }

    impl Plain {
        fn new() -> std::io::Result<Plain> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(Plain { runtime, client: Client::builder(TokioExecutor::new()).build_http() })
        }

        async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
            let response = self.client.request(request.map(Full::new)).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        }
    }

    impl HttpClient for Plain {
        fn send_bytes<'a, 'async_trait>(
            &'a self,
            request: Request<Bytes>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'async_trait>>
        where
            'a: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async move {
                self.runtime.block_on(async {
                    match tokio::time::timeout(SEND_FOR, self.send(request)).await {
                        Ok(sent) => sent,
                        Err(_) => Err("the collector did not answer in time".into()),
                    }
                })
            })
        }
    }

    impl fmt::Debug for Plain {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Plain")
        }
    }

    /// Time-out of one batch: OTLP's default.
    const SEND_FOR: Duration = Duration::from_secs(10);

    /// Largest response of a collector that is read: it contains next to nothing.
    const ANSWER_BYTES_MAX: usize = 64 << 10;

    /// Time that a stopping gateway waits for its last spans: less than an orchestrator waits for the gateway.
    const LAST_SPANS_FOR: Duration = Duration::from_secs(3);
}
