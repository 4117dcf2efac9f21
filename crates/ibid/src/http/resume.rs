//! Runs stored requests without their clients, on the service that the layer wraps: the sweeper resumes lapsed records after
//! their last recovery point, the deliverer runs accepted requests.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Body;
use ibid_core::machine::BeginRequest;
use ibid_core::record::Record;
use ibid_core::store::BoxFuture;
use tower_service::Service;

use super::layer::LayerState;
use super::routes::{ReservedBy, Route};
use super::run::Run;
use super::stored_request;
use crate::attempt::Attempt;
use crate::upkeep::Resume;

/// Runs stored requests on a service.
pub(super) struct Resumer<S, Q> {
    shared: Arc<LayerState>,
    service: S,
    request: PhantomData<fn() -> Q>,
}

impl<S, Q> Resumer<S, Q> {
    pub(super) fn new(shared: Arc<LayerState>, service: S) -> Resumer<S, Q> {
        Resumer { shared, service, request: PhantomData }
    }
}

impl<S, Q, A> Resume for Resumer<S, Q>
where
    S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    A: Body<Data = Bytes> + Unpin + Send + 'static,
{
    fn ask(&self, record: &Record, request: &Bytes) -> Option<BeginRequest> {
        let asked = Arc::new(stored_request::decode(request, &record.identity.operation)?);
        let mut ask = self.shared.ibid.ask((*record.identity).clone(), record.policy.clone(), asked);
        ask.id = record.id;
        Some(ask)
    }

    fn run(&self, attempt: Attempt, ask: Arc<BeginRequest>, request: Bytes) -> BoxFuture<'static, ()> {
        let mut service = self.service.clone();
        let run = Run {
            route: route_of(&self.shared, &ask),
            ask: ask.clone(),
            lends_attempt: self.shared.lends_attempts,
        };
        Box::pin(async move {
            let Some(asked) = stored_request::decode(&request, &ask.identity.operation) else { return };
            let Ok(()) = std::future::poll_fn(|context| service.poll_ready(context)).await;
            run.without_client(attempt, service, &asked).await;
        })
    }
}

/// Returns the route of a stored request, under the policy that its record was begun with.
fn route_of(shared: &LayerState, ask: &BeginRequest) -> Arc<Route> {
    let operation = &ask.identity.operation;
    let method = Method::from_bytes(operation.method.as_bytes()).ok();
    let route = method.and_then(|method| shared.routes.find(&method, &operation.path));
    let pattern = route.map_or_else(|| Arc::from("*"), |route| route.pattern.clone());
    Route::new(pattern, ask.policy.clone(), ReservedBy::Layer)
}
