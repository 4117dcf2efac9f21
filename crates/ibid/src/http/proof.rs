//! Reads what a response proves about the work, and removes the fields that only ibid needs.

use std::sync::Arc;

use http::{HeaderMap, response};
use ibid_core::policy::Policy;
use ibid_core::proof::{self, IgnoredProof, OUTCOME_FIELD, Proof};

use super::capture::CapturedResponse;
use super::{ExecutionHint, counters};

/// Reads what a captured response proves under the rules that its record was begun with, and removes the fields that no client
/// gets and no store keeps.
///
/// A response that broke off proves nothing. Whether one that was not read to its end does is for the machine to decide.
pub(super) fn take_proof<B>(
    captured: &mut CapturedResponse<B>,
    policy: &Policy,
    route: &Arc<str>,
) -> Option<Proof> {
    let (head, trailers) = match captured {
        CapturedResponse::Whole { head, trailers, .. } => (head, trailers.as_mut()),
        CapturedResponse::Unkept { head, .. } => (head, None),
        CapturedResponse::Broken => return None,
    };
    let read = proof_of(head, policy);
    if let Some(why) = read.ignored {
        counters::outcome_ignored(route, why);
    }
    hide(&mut head.headers, policy);
    if let Some(trailers) = trailers
        && trailers.remove(OUTCOME_FIELD).is_some()
    {
        counters::outcome_ignored(route, IgnoredProof::Trailer);
    }
    read.proof
}

/// Removes `Ibid-Outcome` from the response to an unguarded request.
pub(super) fn hide_outcome(headers: &mut HeaderMap) {
    headers.remove(OUTCOME_FIELD);
}

/// Reads what the head of a response proves. A [`ExecutionHint`] from a handler in this process goes before every field.
fn proof_of(head: &response::Parts, policy: &Policy) -> proof::ProofReading {
    if head.extensions.get::<ExecutionHint>() == Some(&ExecutionHint::Executed) {
        return proof::ProofReading { proof: Some(Proof::Executed), ignored: None };
    }
    proof::read(policy, head.status.as_u16(), |name| {
        head.headers.get_all(name).iter().map(|value| value.as_bytes()).collect()
    })
}

/// Removes the fields that only ibid needs: `Ibid-Outcome`, and those that the preset of the next hop adds.
fn hide(headers: &mut HeaderMap, policy: &Policy) {
    hide_outcome(headers);
    for name in policy.behind.into_iter().flat_map(|hop| hop.fields()) {
        headers.remove(name);
    }
}
