//! The operator's listener: `/healthz` (the process is alive), `/readyz` (it can serve), `/metrics`, and the operator API
//! of `ibid_console` under `/v1`.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use ibid::{Ibid, telemetry};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::sync::watch;
use tower::ServiceExt;
use tower_service::Service;

use crate::output::Failure;

/// The metrics of this process.
#[derive(Clone)]
pub(crate) struct Metrics {
    handle: PrometheusHandle,
    before: Arc<dyn Fn() + Send + Sync>,
}

impl Metrics {
    /// Installs the metrics recorder. May be called once per process.
    pub(crate) fn install() -> Result<Metrics, Failure> {
        let refused = |error| Failure::world("cannot set up metrics").because(error);
        let handle = PrometheusBuilder::new()
            .set_buckets(&BUCKETS)
            .map_err(refused)?
            .install_recorder()
            .map_err(refused)?;
        for &(name, kind, meaning) in telemetry::METRICS {
            match kind {
                "counter" => metrics::describe_counter!(name, meaning),
                "gauge" => metrics::describe_gauge!(name, meaning),
                _ => metrics::describe_histogram!(name, meaning),
            }
        }
        Ok(Metrics { handle, before: Arc::new(|| {}) })
    }

    /// Sets a function to call before each page, for gauges that are cheaper to read than to keep current.
    pub(crate) fn before_each_page(&mut self, before: impl Fn() + Send + Sync + 'static) {
        self.before = Arc::new(before);
    }

    /// Renders all metrics in the Prometheus text format.
    pub(crate) fn page(&self) -> Response<Body> {
        (self.before)();
        let mut page = text(StatusCode::OK, self.handle.render());
        page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4"));
        page
    }
}

/// The pages of the operator's listener.
#[derive(Clone)]
pub(crate) struct Pages {
    ibid: Ibid,
    metrics: Metrics,
    /// The operator API; `None` without a token.
    console: Option<Router>,
    draining: watch::Receiver<bool>,
}

impl Pages {
    pub(crate) fn new(
        ibid: Ibid,
        metrics: Metrics,
        console: Option<Router>,
        draining: watch::Receiver<bool>,
    ) -> Pages {
        let handle = metrics.handle.clone();
        // Histograms collect samples until they are drained. Without a scraper, their memory would grow without bound.
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(METRICS_DRAIN_EVERY).await;
                handle.run_upkeep();
            }
        });
        Pages { ibid, metrics, console, draining }
    }

    async fn answer(self, method: Method, path: String) -> Response<Body> {
        if method != Method::GET && method != Method::HEAD {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        }
        match path.as_str() {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" => self.ready().await,
            "/metrics" => self.metrics.page(),
            _ => text(StatusCode::NOT_FOUND, "not found: /healthz, /readyz, /metrics, /v1/\n"),
        }
    }

    async fn ready(&self) -> Response<Body> {
        if *self.draining.borrow() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "draining\n");
        }
        if !self.ibid.is_identity_active() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "the identity of the store was retired\n");
        }
        match self.ibid.check_ready(READY_WITHIN).await {
            Ok(()) => text(StatusCode::OK, "ready\n"),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        }
    }
}

impl<B> Service<Request<B>> for Pages
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if request.uri().path().starts_with("/v1/") {
            return match self.console.clone() {
                Some(console) => Box::pin(console.oneshot(request.map(Body::new))),
                None => Box::pin(std::future::ready(Ok(no_api()))),
            };
        }
        let answer = self.clone().answer(request.method().clone(), request.uri().path().to_owned());
        Box::pin(async move { Ok(answer.await) })
    }
}

/// Response to an API request when no token is set: an API open to everyone would be worse than none.
fn no_api() -> Response<Body> {
    let problem = serde_json::json!({
        "type": "urn:ibid:problem:no-admin-api",
        "title": "There is no admin API",
        "status": 403,
        "detail": "start the gateway with `IBID_ADMIN_TOKEN` set, and send it as `Authorization: Bearer`",
    });
    let mut response = text(StatusCode::FORBIDDEN, problem.to_string());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Histogram buckets in seconds, from a cached replay to a slow upstream.
const BUCKETS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Time-out of the readiness probe. Orchestrators give a probe one second, and a store that takes longer does not serve
/// begins either.
const READY_WITHIN: Duration = Duration::from_millis(900);

/// Interval at which histograms are drained. At 20,000 requests a second it collects a few hundred thousand samples, some
/// megabytes.
const METRICS_DRAIN_EVERY: Duration = Duration::from_secs(5);
