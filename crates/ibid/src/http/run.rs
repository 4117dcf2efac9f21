//! One run of the handler, detached from its client: lease, handler, time-out, and the end of the attempt.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body::Body;
use ibid_core::machine::BeginRequest;
use ibid_core::policy::{Policy, Profile};
use ibid_core::proof::Proof;
use ibid_core::record::ErrorCode;
use ibid_core::refusal::Refusal;
use ibid_core::response::Response as CoreResponse;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tower_service::Service;
use tracing::Instrument;

use super::admission::BodyBytes;
use super::body::ReplyBody;
use super::capture::{self, CapturedResponse};
use super::counters::{self, ReserveOutcome};
use super::handler_attempt::AttemptSlot;
use super::intake::HttpRequestView;
use super::respond::{Candidate, RETRY_SOON, uncertain};
use super::routes::Route;
use super::{ExecutionHint, GuardedRequest, proof, render};
use crate::attempt::{Attempt, LateAnswer};
use crate::outcome::Outcome;
use crate::telemetry;

/// One run of the handler for one request.
pub(super) struct Run {
    pub(super) route: Arc<Route>,
    pub(super) ask: Arc<BeginRequest>,
    /// Set if the handler can take the attempt.
    pub(super) lends_attempt: bool,
}

/// The outcome of a run, and the response that it has for its client.
pub(super) type RunResult<A> = (Outcome, Candidate<A>);

impl Run {
    /// Spawns the run. The receiver gets its result; dropping the receiver tells the run that its client has left.
    ///
    /// `body` is held until the run has ended.
    pub(super) fn spawn<S, Q, A>(
        self,
        attempt: Attempt,
        inner: S,
        asked: Arc<HttpRequestView>,
        body: Option<Arc<dyn BodyBytes>>,
    ) -> oneshot::Receiver<RunResult<A>>
    where
        S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Send + 'static,
        S::Future: Send,
        Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
        A: Body<Data = Bytes> + Unpin + Send + 'static,
    {
        let (to_client, from_run) = oneshot::channel();
        let run = async move {
            self.execute(attempt, inner, &asked, Client(Some(to_client))).await;
            drop(body);
        };
        tokio::spawn(run.in_current_span());
        from_run
    }

    /// Runs a request that has no client.
    pub(super) async fn without_client<S, Q, A>(&self, attempt: Attempt, inner: S, asked: &HttpRequestView)
    where
        S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Send + 'static,
        S::Future: Send,
        Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
        A: Body<Data = Bytes> + Unpin + Send + 'static,
    {
        self.execute(attempt, inner, asked, Client(None)).await;
    }

    async fn execute<S, Q, A>(
        &self,
        attempt: Attempt,
        mut inner: S,
        asked: &HttpRequestView,
        client: Client<A>,
    ) where
        S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Send + 'static,
        S::Future: Send,
        Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
        A: Body<Data = Bytes> + Unpin + Send + 'static,
    {
        let (route, policy) = (&self.route, &*self.route.policy);
        let Some((attempt, client)) = self.ensure_wanted(attempt, client).await else { return };
        let renewal = attempt.keep_alive();
        let span = tracing::debug_span!(telemetry::SPAN_RUN, record = %attempt.short_id(), attempt = attempt.number());
        let rules = attempt.begun_record().policy.clone();
        let (request, slot) = self.handler_request(attempt, asked);
        let handler = async {
            let Ok(response) = inner.call(request).await;
            self.read_response(response, &rules).await
        };
        let mut handler = Box::pin(AssertUnwindSafe(handler).catch_unwind().instrument(span));
        let started = Instant::now();
        let ended = tokio::select! {
            biased;
            ended = tokio::time::timeout(policy.upstream_timeout, &mut handler) => ended,
            // Renewal ends at `max_run` or when the record is lost. The run waits for the handler all the same.
            _ = async { renewal.await; std::future::pending::<()>().await } => unreachable!("it never ends"),
        };
        let ended = ended.map(|ended| ended.unwrap_or(HandlerResult::Panicked));
        let label = ended.as_ref().map_or("timed_out", HandlerResult::label);
        counters::record_run(&route.pattern, label, started.elapsed().as_secs_f64());
        match (ended, slot.take()) {
            (Ok(result), Some(attempt)) => {
                let end = self.end(attempt, result, client);
                end.instrument(tracing::debug_span!(telemetry::SPAN_FINISH)).await;
            }
            (Ok(_), None) => {
                // The task that holds the attempt may still end it. If it drops the attempt, that ends it too.
                tracing::error!("handler returned while another task held its attempt");
                // Nothing is known of the outcome here; the client only gets the refusal.
                client.send(Outcome::Released, Candidate::Refusal(Refusal::HandlerFailed));
            }
            (Err(_), None) => {
                // The handler holds the attempt, with or without an open transaction. Dropping it ends both.
                drop(handler);
                self.end_timed_out(slot.take(), client).await;
            }
            // The handler ended the attempt in its transaction. What it does after that changes nothing.
            (Err(_), Some(attempt)) if attempt.outcome().is_some() => {
                self.end_timed_out(Some(attempt), client).await;
            }
            (Err(_), Some(attempt)) => {
                let (outcome, late) = attempt.unknown(ErrorCode::TimedOut).await;
                let refusal = uncertain(true, &outcome);
                client.send(outcome, Candidate::Refusal(refusal));
                // A late response still settles the record.
                if let Ok(Ok(result)) = tokio::time::timeout(policy.linger, handler).await {
                    settle_late(late, result, policy).await;
                }
            }
        }
    }

    /// Makes sure that the lease is good and the client still there. Otherwise releases the key and returns `None`.
    ///
    /// Invariant: between this and the handler's first byte there is no await.
    async fn ensure_wanted<A>(
        &self,
        mut attempt: Attempt,
        client: Client<A>,
    ) -> Option<(Attempt, Client<A>)> {
        let kind = if attempt.number() == 1 { ReserveOutcome::Created } else { ReserveOutcome::FailedRetry };
        self.route.counters.count(kind);
        if client.has_left() {
            let _ = attempt.release(ErrorCode::ClientGone).await;
            return None;
        }
        if attempt.ensure_lease().await.is_err() {
            let outcome = attempt.release(ErrorCode::NotSent).await;
            client.send(outcome, Candidate::Refusal(render::store_unavailable()));
            return None;
        }
        // Checked again, because `ensure_lease` may have waited for the store.
        if client.has_left() {
            let _ = attempt.release(ErrorCode::ClientGone).await;
            return None;
        }
        Some((attempt, client))
    }

    /// Returns the request as the handler sees it, and the slot from which the run takes its attempt back.
    fn handler_request<Q: From<Bytes>>(
        &self,
        attempt: Attempt,
        asked: &HttpRequestView,
    ) -> (Request<Q>, AttemptSlot) {
        let mut request = asked.to_request();
        let identity = &self.ask.identity;
        request.extensions_mut().insert(GuardedRequest {
            tenant: identity.tenant.clone(),
            key: identity.key.clone(),
            attempt: attempt.number(),
            after: attempt.after(),
            policy: self.ask.policy.clone(),
        });
        let slot = AttemptSlot::new(attempt);
        if self.lends_attempt {
            request.extensions_mut().insert(slot.clone());
        }
        (request, slot)
    }

    /// Reads the handler's response as far as it may be stored, under the `rules` that its record was begun with.
    async fn read_response<A: Body<Data = Bytes> + Unpin>(
        &self,
        response: Response<A>,
        rules: &Policy,
    ) -> HandlerResult<A> {
        match response.extensions().get::<ExecutionHint>() {
            Some(ExecutionHint::NotExecuted) => return HandlerResult::NotExecuted,
            Some(ExecutionHint::Uncertain) => return HandlerResult::Uncertain,
            Some(ExecutionHint::Executed) | None => {}
        }
        let policy = &self.route.policy;
        let mut captured = capture::read(response, policy.max_response_body, policy.stream).await;
        let proof = proof::take_proof(&mut captured, rules, &self.route.pattern);
        if policy.profile == Profile::Stripe
            && let CapturedResponse::Whole { head, .. } | CapturedResponse::Unkept { head, .. } =
                &mut captured
        {
            render::add_stripe_fields(&mut head.headers, self.ask.identity.key.as_str());
        }
        HandlerResult::CapturedResponse(captured, proof)
    }

    /// Ends the attempt of a handler that returned in time.
    async fn end<A>(&self, mut attempt: Attempt, result: HandlerResult<A>, client: Client<A>) {
        let policy = &self.route.policy;
        if let Some(outcome) = attempt.take_outcome() {
            let response = match result {
                HandlerResult::CapturedResponse(CapturedResponse::Whole { head, body, trailers }, _) => {
                    Ok(Response::from_parts(head, ReplyBody::whole(body, trailers)))
                }
                _ => Err(Refusal::UpstreamUnavailable),
            };
            return client.send(outcome, Candidate::Transaction(response));
        }
        match result {
            HandlerResult::NotExecuted => {
                let outcome = attempt.release(ErrorCode::NotSent).await;
                client.send(outcome, Candidate::Refusal(Refusal::UpstreamUnavailable));
            }
            HandlerResult::Uncertain | HandlerResult::CapturedResponse(CapturedResponse::Broken, _) => {
                let (outcome, _) = attempt.unknown(ErrorCode::Broken).await;
                let refusal = uncertain(false, &outcome);
                client.send(outcome, Candidate::Refusal(refusal));
            }
            HandlerResult::CapturedResponse(CapturedResponse::Whole { head, body, trailers }, proof) => {
                let stored = capture::to_stored(&head, &body, trailers.as_ref(), policy);
                let outcome = attempt.proven(proof).finish(stored).await;
                let response = Response::from_parts(head, ReplyBody::whole(body, trailers));
                client.send(outcome, Candidate::Handler(response));
            }
            HandlerResult::CapturedResponse(CapturedResponse::Unkept { head, read, rest }, proof) => {
                // Durable before the first byte leaves: after that the client may act on it.
                let stored = capture::to_stored(&head, &Bytes::new(), None, policy);
                let outcome = attempt.proven(proof).finish_unretained(&stored).await;
                let response = Response::from_parts(head, ReplyBody::splice(read, rest));
                client.send(outcome, Candidate::Handler(response));
            }
            HandlerResult::Panicked => {
                let rendered = Refusal::HandlerFailed.render(policy.profile);
                let stored = CoreResponse::plain(rendered.status, rendered.content_type, rendered.body);
                let outcome = attempt.finish(stored).await;
                client.send(outcome, Candidate::Refusal(Refusal::HandlerFailed));
            }
        }
    }

    /// Ends the attempt of a handler that was stopped while it held the attempt. Its transaction is committed or rolled back by
    /// now.
    async fn end_timed_out<A>(&self, attempt: Option<Attempt>, client: Client<A>) {
        let Some(mut attempt) = attempt else {
            return client.send(Outcome::Released, Candidate::Refusal(Refusal::HandlerFailed));
        };
        if let Some(outcome) = attempt.take_outcome() {
            return client.send(outcome, Candidate::Transaction(Err(Refusal::UpstreamUnavailable)));
        }
        if attempt.has_ended() {
            // Its end is being written. The client waits for that like a duplicate.
            return client.send(Outcome::InFlight { retry_in: RETRY_SOON }, Candidate::Duplicate);
        }
        let outcome = if attempt.is_exposed() {
            attempt.unknown(ErrorCode::TimedOut).await.0
        } else {
            attempt.release(ErrorCode::TimedOut).await
        };
        let refusal = match outcome {
            Outcome::Released => Refusal::UpstreamUnavailable,
            _ => uncertain(true, &outcome),
        };
        client.send(outcome, Candidate::Refusal(refusal));
    }
}

/// The client that a run reports to; `None` if the request runs without one.
struct Client<A>(Option<oneshot::Sender<RunResult<A>>>);

impl<A> Client<A> {
    /// Returns whether there was a client and it has left.
    fn has_left(&self) -> bool {
        self.0.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    fn send(self, outcome: Outcome, candidate: Candidate<A>) {
        if let Some(to_client) = self.0 {
            // A client that has left gets nothing; its retry gets what is stored.
            let _ = to_client.send((outcome, candidate));
        }
    }
}

/// The result of a handler.
#[expect(
    clippy::large_enum_variant,
    reason = "one per run and short-lived: a box would cost more than the move"
)]
enum HandlerResult<A> {
    /// The handler returned this response, whose fields may prove something about the work.
    CapturedResponse(CapturedResponse<A>, Option<Proof>),
    /// The handler reported that nothing was executed.
    NotExecuted,
    /// The handler reported that the work may have been done.
    Uncertain,
    /// The handler or its response body panicked.
    Panicked,
}

impl<A> HandlerResult<A> {
    /// Returns the label of the run in its histogram.
    fn label(&self) -> &'static str {
        match self {
            HandlerResult::CapturedResponse(
                CapturedResponse::Whole { .. } | CapturedResponse::Unkept { .. },
                _,
            ) => "answered",
            HandlerResult::NotExecuted => "not_executed",
            HandlerResult::Uncertain | HandlerResult::CapturedResponse(CapturedResponse::Broken, _) => {
                "broken"
            }
            HandlerResult::Panicked => "panicked",
        }
    }
}

/// Settles the record with a response that came after the time-out, unless it was settled otherwise meanwhile.
async fn settle_late<A>(late: LateAnswer, result: HandlerResult<A>, policy: &Policy) {
    match result {
        HandlerResult::CapturedResponse(CapturedResponse::Whole { head, body, trailers }, proof) => {
            let stored = capture::to_stored(&head, &body, trailers.as_ref(), policy);
            let _ = late.proven(proof).finish(stored).await;
        }
        HandlerResult::CapturedResponse(CapturedResponse::Unkept { head, .. }, proof) => {
            let stored = capture::to_stored(&head, &Bytes::new(), None, policy);
            let _ = late.proven(proof).finish_unretained(&stored).await;
        }
        HandlerResult::NotExecuted => {
            let _ = late.release(ErrorCode::NotSent).await;
        }
        HandlerResult::Uncertain
        | HandlerResult::CapturedResponse(CapturedResponse::Broken, _)
        | HandlerResult::Panicked => {}
    }
}
