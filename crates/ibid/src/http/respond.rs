//! The one mapping from the outcome of a request to its HTTP response, in the words of the route's profile.
//!
//! [`respond`] decides between the response that the caller has at hand (a [`Candidate`]) and what the outcome demands;
//! `render` makes the parts.

use std::time::Duration;

use ibid_core::machine::BeginRequest;
use ibid_core::policy::InFlight;
use ibid_core::refusal::Refusal;

use super::counters::ReserveOutcome;
use super::render::{
    Reply, just_stored, mark_not_stored, mark_stored, mark_unknown, refusal, render_accepted, replay,
    store_unavailable,
};
use super::routes::Route;
use super::{cors, repeatability};
use crate::engine::UnavailableError;
use crate::outcome::Outcome;
use crate::{telemetry, trace};

/// The response that a client gets if the outcome of its request allows it.
pub(super) enum Candidate<B> {
    /// No response, because the request did not run.
    Duplicate,
    /// A 202: the request was accepted just now, and its client waits for the result.
    Accepted,
    /// The response that the handler returned.
    Handler(Reply<B>),
    /// The handler's response, or a refusal if it returned none, after it ended the attempt in its own transaction. If the
    /// transaction stored a response, that one is sent.
    Transaction(Result<Reply<B>, Refusal>),
    /// A refusal of ibid's own, because the handler gave no response.
    Refusal(Refusal),
}

/// Returns the response to a request with this outcome.
pub(super) fn respond<B>(
    outcome: &Outcome,
    candidate: Candidate<B>,
    route: &Route,
    ask: &BeginRequest,
) -> Reply<B> {
    let span = tracing::debug_span!(
        telemetry::SPAN_REPLY,
        record = %ask.id.short(),
        first_trace = tracing::field::Empty
    );
    let _entered = span.enter();
    match (outcome, candidate) {
        // The record was changed without this attempt: what is stored counts, whatever the handler returned.
        (Outcome::Superseded(stored), _) => duplicate(stored, route, ask, &span),
        (outcome, Candidate::Duplicate) => duplicate(outcome, route, ask, &span),
        (outcome, Candidate::Accepted) => accepted_now(outcome, route, ask, &span),
        (outcome, Candidate::Handler(response)) => first(outcome, response, route, ask),
        (outcome, Candidate::Transaction(response)) => in_transaction(outcome, response, route, ask, &span),
        (outcome, Candidate::Refusal(reason)) => {
            let mut reply = refusal(reason, route.policy.profile, None);
            if matches!(outcome, Outcome::NotDurable) {
                mark_not_stored(reply.headers_mut());
            }
            reply
        }
    }
}

/// Returns the response to a request that did not run.
fn duplicate<B>(outcome: &Outcome, route: &Route, ask: &BeginRequest, span: &tracing::Span) -> Reply<B> {
    let profile = route.policy.profile;
    let (reserved, reason) = match outcome {
        Outcome::Completed(stored) => {
            trace::link_to_first(span, &stored.record);
            route.counters.count(ReserveOutcome::Replay);
            return replay(stored);
        }
        Outcome::NotRetained(_) => (ReserveOutcome::Gone, Refusal::ResponseNotRetained),
        Outcome::Expired => (ReserveOutcome::Gone, Refusal::KeyExpired),
        // Its run counts the request.
        Outcome::Accepted { new: true } => return render_accepted(&ask.identity, profile),
        Outcome::Accepted { new: false } => {
            route.counters.count(ReserveOutcome::InProgress);
            return render_accepted(&ask.identity, profile);
        }
        // This client takes a 202, even if the request that runs came from a client that does not.
        Outcome::InFlight { .. } | Outcome::AwaitingEffect
            if route.policy.in_flight == InFlight::Accepted || ask.later.is_some() =>
        {
            route.counters.count(ReserveOutcome::InProgress);
            return render_accepted(&ask.identity, profile);
        }
        Outcome::InFlight { retry_in } => {
            (ReserveOutcome::InProgress, Refusal::RequestInProgress { retry_after: *retry_in })
        }
        // The key is free by now, or its result is about to be stored.
        Outcome::Released | Outcome::AwaitingEffect | Outcome::NotDurable | Outcome::Superseded(_) => {
            (ReserveOutcome::InProgress, Refusal::RequestInProgress { retry_after: RETRY_SOON })
        }
        Outcome::Unknown { settled_in } => {
            (ReserveOutcome::Unknown, Refusal::OutcomeUnknown { retry_after: *settled_in })
        }
        Outcome::Mismatch => {
            // A client that reuses keys is broken or hostile. An operator should know of either.
            tracing::warn!(target: "ibid::security", record = %ask.id.short(), route = %route.pattern, "key misuse");
            (ReserveOutcome::KeyMisuse, Refusal::KeyReused)
        }
    };
    route.counters.count(reserved);
    refusal(reason, profile, Some(&ask.identity))
}

/// Returns the response to a request that was accepted, after its client waited for the result.
fn accepted_now<B>(outcome: &Outcome, route: &Route, ask: &BeginRequest, span: &tracing::Span) -> Reply<B> {
    match outcome {
        Outcome::Completed(stored) => just_stored(stored),
        Outcome::Accepted { .. } | Outcome::InFlight { .. } => {
            render_accepted(&ask.identity, route.policy.profile)
        }
        outcome => duplicate(outcome, route, ask, span),
    }
}

/// Returns the handler's response, marked with what was stored of it.
fn first<B>(outcome: &Outcome, mut response: Reply<B>, route: &Route, ask: &BeginRequest) -> Reply<B> {
    let profile = route.policy.profile;
    let headers = response.headers_mut();
    repeatability::mark(headers, profile, !matches!(outcome, Outcome::Released));
    match outcome {
        Outcome::Completed(stored) => mark_stored(headers, &stored.record, profile),
        Outcome::NotRetained(record) => {
            mark_stored(headers, record, profile);
            mark_not_stored(headers);
        }
        Outcome::NotDurable => mark_not_stored(headers),
        Outcome::Unknown { .. } => mark_unknown(headers, &ask.identity),
        _ => {}
    }
    cors::expose_fields(headers);
    response
}

/// Returns the response after the handler ended the attempt in its own transaction: the stored one, or else the response that
/// the handler returned.
fn in_transaction<B>(
    outcome: &Outcome,
    response: Result<Reply<B>, Refusal>,
    route: &Route,
    ask: &BeginRequest,
    span: &tracing::Span,
) -> Reply<B> {
    let profile = route.policy.profile;
    match outcome {
        Outcome::Completed(stored) => just_stored(stored),
        // It is not known here whether the transaction was committed. A retry learns it from the record.
        Outcome::NotDurable => refusal(store_unavailable(), profile, None),
        Outcome::Released | Outcome::NotRetained(_) => match response {
            Ok(mut response) => {
                let is_accepted = !matches!(outcome, Outcome::Released);
                repeatability::mark(response.headers_mut(), profile, is_accepted);
                response
            }
            Err(reason) => refusal(reason, profile, None),
        },
        outcome => duplicate(outcome, route, ask, span),
    }
}

/// Refuses a request whose key could not be reserved. Nothing was executed.
pub(super) fn not_reserved<B>(refused: &UnavailableError, route: &Route) -> Reply<B> {
    let _entered = tracing::debug_span!(telemetry::SPAN_REPLY).entered();
    let profile = route.policy.profile;
    route.counters.count(ReserveOutcome::Unavailable);
    let reason = match refused.is_overloaded() {
        true => Refusal::Overloaded,
        false => Refusal::StoreUnavailable { retry_after: refused.retry_after() },
    };
    refusal(reason, profile, None)
}

/// Returns the refusal of a request that the upstream may have executed, with the advice that a retry gets now.
pub(super) fn uncertain(timed_out: bool, outcome: &Outcome) -> Refusal {
    let may_settle = !matches!(outcome, Outcome::Unknown { settled_in: None });
    Refusal::UpstreamUncertain { timed_out, may_settle }
}

/// Retry-After of a request whose key is free by now, or whose result is about to be stored: the field counts in seconds.
pub(super) const RETRY_SOON: Duration = Duration::from_secs(1);
