//! A guarded request on its client's side: intake, `begin`, and the response.
//!
//! `begin` runs on the request's own task. Only a request that has to run is detached from its client (`run`), so that its
//! completion does not depend on the client waiting.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use ibid_core::machine::BeginRequest;
use ibid_core::refusal::Refusal;
use ibid_core::scope::Operation;
use tower_service::Service;
use tracing::Instrument;

use super::body::ReplyBody;
use super::counters::{self, ReserveOutcome};
use super::handler_attempt::{HandlerOutcome, UnreservedRequest};
use super::intake::{self, Intake, TakenRequest};
use super::layer::{LayerState, pass_on};
use super::render::{self, Reply};
use super::respond::{self, Candidate, respond};
use super::routes::{ReservedBy, Route};
use super::{repeatability, run, without_key};
use crate::ibid::Ibid;
use crate::outcome::{Begin, Outcome};
use crate::telemetry;

/// Serves a guarded request, from intake to response.
pub(super) async fn serve<S, Q, A>(
    shared: &LayerState,
    mut inner: S,
    route: Arc<Route>,
    operation: Operation,
    request: Request<Q>,
) -> Reply<A>
where
    S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    A: Body<Data = Bytes> + Unpin + Send + 'static,
{
    let profile = route.policy.profile;
    let intake = intake::take(shared, &route, operation, request)
        .instrument(tracing::debug_span!(telemetry::SPAN_INTAKE));
    let taken = match intake.await {
        Intake::Taken(taken) => taken,
        Intake::Unguarded(mut request) => {
            counters::without_key(&route.pattern, 1);
            without_key::notice(&shared.keys_elsewhere, &route, &mut request);
            let Ok(response) = inner.call(request).await;
            return pass_on(response);
        }
        Intake::Refused(refusal) => {
            let _entered = tracing::debug_span!(telemetry::SPAN_REPLY).entered();
            return render::refusal(refusal, profile, None);
        }
    };
    if taken.too_old {
        match repeatability::is_new(&shared.ibid, &taken.ask).await {
            Ok(false) => {}
            Ok(true) => return render::refusal(Refusal::RequestTooOld, profile, None),
            Err(_) => return render::refusal(render::store_unavailable(), profile, None),
        }
    }
    if route.reserved_by == ReservedBy::Handler {
        return Box::pin(reserved_by_handler(shared, inner, route, *taken)).await;
    }
    let reply = match shared.ibid.replay_cached(&taken.ask) {
        Some(outcome) => respond(&outcome, Candidate::Duplicate, &route, &taken.ask),
        // Boxed, so that a cached replay does not pay for the size of the rest.
        None => Box::pin(begin(shared, inner, route, taken)).await,
    };
    shared.within_room(reply, profile)
}

/// Reserves the key, runs the request if it has to run, and waits for the result as long as the client wants to.
async fn begin<S, Q, A>(
    shared: &LayerState,
    inner: S,
    route: Arc<Route>,
    taken: Box<TakenRequest>,
) -> Reply<A>
where
    S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    A: Body<Data = Bytes> + Unpin + Send + 'static,
{
    let ibid = &shared.ibid;
    // `admitted` is held until the client has its response. The run holds the part of the body for as long as it needs it.
    let TakenRequest { asked, ask, wait, preferred, admitted, .. } = *taken;
    let ask = ibid.engine().with_fresh_nonce(ask);
    let begin = ibid.begin_uncached(ask.clone()).instrument(tracing::debug_span!(telemetry::SPAN_BEGIN));
    let (outcome, candidate) = match begin.await {
        Err(refused) => return respond::not_reserved(&refused, &route),
        Ok(Begin::Skip(outcome)) => (outcome, Candidate::Duplicate),
        // No await between the end of the begin and the spawn: a client that leaves before drops the attempt, which
        // releases the key, and one that leaves after is seen by the run.
        Ok(Begin::Run(attempt)) => {
            let body = admitted.as_ref().map(|admitted| Arc::clone(&admitted.body));
            let run = run::Run {
                route: Arc::clone(&route),
                ask: ask.clone(),
                lends_attempt: shared.lends_attempts,
            };
            match run.spawn(*attempt, inner, asked, body).await {
                Ok(ended) => ended,
                // The task can only have been dropped with the whole runtime.
                Err(_) => return render::refusal(render::store_unavailable(), route.policy.profile, None),
            }
        }
    };
    let mut reply = match outcome {
        Outcome::Accepted { new: true } if !wait.is_zero() => {
            let outcome = ibid.wait(BeginRequest::clone(&ask), wait).await;
            // Its result will be there later, whatever the store answers now.
            let outcome = outcome.unwrap_or(Outcome::Accepted { new: true });
            respond(&outcome, Candidate::Accepted, &route, &ask)
        }
        Outcome::InFlight { .. } | Outcome::Accepted { .. } | Outcome::AwaitingEffect if !wait.is_zero() => {
            wait_as_duplicate(ibid, &route, &ask, wait).await
        }
        outcome => respond(&outcome, candidate, &route, &ask),
    };
    if preferred {
        render::confirm_preference(&mut reply);
    }
    reply
}

/// Serves a request whose key the handler reserves in its own transaction. It is detached from its client like every other.
async fn reserved_by_handler<S, Q, A>(
    shared: &LayerState,
    mut inner: S,
    route: Arc<Route>,
    taken: TakenRequest,
) -> Reply<A>
where
    S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    A: Body<Data = Bytes> + Unpin + Send + 'static,
{
    let (ask, wait, profile) = (&taken.ask, taken.wait, route.policy.profile);
    let unreserved = UnreservedRequest::new(shared.ibid.clone(), ask.clone(), wait);
    let mut request = taken.asked.to_request();
    request.extensions_mut().insert(unreserved.clone());
    let (drain_guard, up_to) = (shared.ibid.engine().drain.track(), route.policy.upstream_timeout);
    let span = tracing::debug_span!(telemetry::SPAN_RUN, record = %ask.id.short());
    let run = async move {
        // Past its time the handler is dropped, and its transaction with it.
        let ended = tokio::time::timeout(up_to, inner.call(request)).await;
        drop(drain_guard);
        ended.map(|answered| answered.unwrap_or_else(|never| match never {}))
    };
    let response = match tokio::spawn(run.instrument(span)).await {
        Ok(Ok(response)) => Ok(response.map(ReplyBody::pass_through)),
        Ok(Err(_)) if unreserved.outcome().is_none() => {
            // A commit that was in flight when the handler was dropped may have succeeded. The record tells.
            return wait_as_duplicate(&shared.ibid, &route, ask, Duration::ZERO).await;
        }
        // A panic undid the handler's transaction.
        Ok(Err(_)) | Err(_) => Err(Refusal::HandlerFailed),
    };
    match unreserved.outcome() {
        // The handler reserved nothing, so its response is its own.
        None => response.unwrap_or_else(|reason| render::refusal(reason, profile, None)),
        Some(HandlerOutcome::Skipped(outcome)) => respond(&outcome, Candidate::Duplicate, &route, ask),
        Some(HandlerOutcome::Ended(outcome)) => {
            route.counters.count(ReserveOutcome::Created);
            match outcome {
                Outcome::AwaitingEffect => wait_as_duplicate(&shared.ibid, &route, ask, wait).await,
                outcome => respond(&outcome, Candidate::Transaction(response), &route, ask),
            }
        }
    }
}

/// Waits for the result of another attempt, or of an effect.
async fn wait_as_duplicate<A>(ibid: &Ibid, route: &Route, ask: &BeginRequest, wait: Duration) -> Reply<A> {
    match ibid.wait(ask.clone(), wait).await {
        Ok(outcome) => respond(&outcome, Candidate::Duplicate, route, ask),
        Err(refused) => respond::not_reserved(&refused, route),
    }
}
