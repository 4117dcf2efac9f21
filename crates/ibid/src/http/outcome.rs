//! What an answer proves about the work, and the fields that say so taken off it: they are for ibid alone.

use std::sync::Arc;

use http::{HeaderMap, response};
use ibid_core::policy::Policy;
use ibid_core::proof::{self, Ignored, OUTCOME_FIELD, Proof};

use super::Fate;
use super::capture::Captured;
use crate::telemetry;

/// Reads what a captured answer proves under the rules that its record was begun with, and removes the fields that no
/// client gets and no store keeps.
///
/// An answer that broke off proves nothing. Whether one that was not read to its end does is the machine's to decide.
pub(super) fn take_proof<B>(captured: &mut Captured<B>, policy: &Policy, route: &Arc<str>) -> Option<Proof> {
    let (head, trailers) = match captured {
        Captured::Whole { head, trailers, .. } => (head, trailers.as_mut()),
        Captured::Unkept { head, .. } => (head, None),
        Captured::Broken => return None,
    };
    let read = proof_of(head, policy);
    if let Some(why) = read.ignored {
        telemetry::outcome_ignored(route, why);
    }
    hide(&mut head.headers, policy);
    if let Some(trailers) = trailers
        && trailers.remove(OUTCOME_FIELD).is_some()
    {
        telemetry::outcome_ignored(route, Ignored::Trailer);
    }
    read.proof
}

/// Removes the upstream's word from an answer that nobody guards.
pub(super) fn hide_outcome(headers: &mut HeaderMap) {
    headers.remove(OUTCOME_FIELD);
}

/// What the head of an answer proves. A handler in this process says it by a [`Fate`], and that goes before every field.
fn proof_of(head: &response::Parts, policy: &Policy) -> proof::Reading {
    if head.extensions.get::<Fate>() == Some(&Fate::Executed) {
        return proof::Reading { proof: Some(Proof::Executed), ignored: None };
    }
    proof::read(policy, head.status.as_u16(), |name| {
        head.headers.get_all(name).iter().map(|value| value.as_bytes()).collect()
    })
}

/// Removes the fields that are for ibid alone: the upstream's word, and what the preset of the next hop adds.
fn hide(headers: &mut HeaderMap, policy: &Policy) {
    hide_outcome(headers);
    for name in policy.behind.into_iter().flat_map(|hop| hop.fields()) {
        headers.remove(name);
    }
}
