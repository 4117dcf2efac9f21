//! Judges what evidence from outside proves about a record or an effect.
//!
//! Evidence settles an unknown outcome and keeps a call that was made from being repeated. It changes nothing else.
//!
//! For an effect, "executed" is never stale. A downstream key belongs to one effect of one generation of one record,
//! and a provider's id to one call of it. So whichever try made the call, the effect is done, and no other call may be
//! made.
//!
//! "Not executed" is proof only for an instant at which no call could be in flight any more. For an effect that is
//! [`EffectRules::settle_ms`] after its last call ended or its worker was given up. Each later try replaces that
//! instant, and it is cleared while the outcome is known, so evidence from before the present try never counts. A
//! claimed effect gets its next event from its worker: no webhook takes it away. An effect that was never claimed was
//! not called, so evidence about it stays stored.
//!
//! [`EffectRules::settle_ms`]: crate::effect::EffectRules::settle_ms

use std::sync::Arc;
use std::time::Duration;

use super::{AttemptResponse, Decision, EffectState, Observation, ObservedBy, Verdict, upkeep};
use crate::change::{Change, Expect, History, HistoryKind};
use crate::effect::StoredEffect;
use crate::evidence::StoredEvidence;
use crate::record::{Nonce, Record, State};
use crate::time::Timestamp;

/// Judgement of evidence about a record or an effect in its present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvidenceVerdict {
    /// The outcome is unknown, and this settles it.
    Settles,
    /// The outcome may become unknown, and then this settles it.
    Early,
    /// It says "not executed" for an instant at which the call could still be made: it never settles anything.
    Premature,
    /// It is about an earlier attempt, and never settles this one.
    Stale,
    /// The outcome is known already, and this says the same.
    Known,
    /// The outcome is known already, and this contradicts it: an operator should learn of it.
    Contradicts,
}

/// Judges evidence about a record; `None` if the record does not exist (yet).
pub fn judge_record(record: Option<&Record>, stored: &StoredEvidence) -> EvidenceVerdict {
    let frees = stored.evidence.what == Observation::NotExecuted;
    let Some(record) = record else { return judge_open(frees) };
    // Two tests, because a store's clock may be set back: an attempt that began after the arrival has a different
    // owner.
    let is_other = stored.evidence.owner.is_some_and(|owner| owner != record.owner);
    if is_other || record.ran_at.is_some_and(|ran_at| stored.as_of < ran_at) {
        return EvidenceVerdict::Stale;
    }
    match record.state {
        State::Unknown if frees && !upkeep::is_over(record, stored.as_of) => EvidenceVerdict::Premature,
        State::Unknown => EvidenceVerdict::Settles,
        // The record may run again, but an in-doubt call leaves the outcome open.
        State::Pending | State::Retryable if record.note.doubt.is_some() => judge_open(frees),
        // An accepted request that waits for its next run is like a `retryable` one.
        State::Pending if record.attempt > 0 && !record.flags.owed => judge_retryable(stored),
        State::InProgress | State::Pending => judge_open(frees),
        State::Completed if contradicts(record, &stored.evidence.what) => EvidenceVerdict::Contradicts,
        State::Completed => EvidenceVerdict::Known,
        State::Retryable => judge_retryable(stored),
    }
}

/// Judges evidence about an effect; `None` if the effect does not exist (yet).
pub fn judge_effect(effect: Option<&StoredEffect>, stored: &StoredEvidence) -> EvidenceVerdict {
    let frees = stored.evidence.what == Observation::NotExecuted;
    let Some(effect) = effect else { return judge_open(frees) };
    match effect.state {
        EffectState::Unknown if frees && !is_over(effect, stored.as_of) => EvidenceVerdict::Premature,
        EffectState::Unknown => EvidenceVerdict::Settles,
        EffectState::Queued if !frees && effect.version.count > FIRST_COUNT => EvidenceVerdict::Settles,
        EffectState::Queued | EffectState::Claimed => judge_open(frees),
        EffectState::Done if frees || is_another(effect, &stored.evidence.what) => {
            EvidenceVerdict::Contradicts
        }
        EffectState::Done => EvidenceVerdict::Known,
        // An operator must learn that the call was made after all.
        EffectState::Dead | EffectState::Discarded if !frees => EvidenceVerdict::Contradicts,
        EffectState::Dead | EffectState::Discarded => EvidenceVerdict::Known,
    }
}

/// Judges evidence while the outcome is open. "Not executed" never counts here, however long the attempt has run: a
/// call that was not seen yet may be about to be made.
fn judge_open(frees: bool) -> EvidenceVerdict {
    if frees { EvidenceVerdict::Premature } else { EvidenceVerdict::Early }
}

fn judge_retryable(stored: &StoredEvidence) -> EvidenceVerdict {
    match stored.evidence.what {
        Observation::Executed(_) => EvidenceVerdict::Contradicts,
        Observation::NotExecuted | Observation::Nothing => EvidenceVerdict::Known,
    }
}

/// Applies evidence to a record.
pub(super) fn apply(record: Option<&Record>, nonce: Nonce, stored: &StoredEvidence) -> Verdict {
    match (judge_record(record, stored), record) {
        (EvidenceVerdict::Settles, Some(record)) => {
            let what = &stored.evidence.what;
            match upkeep::apply_observation(Some(record), nonce, ObservedBy::Webhook, what, stored.as_of, 0.0)
            {
                Verdict::Write(mut change, decision) => {
                    let inner = Arc::make_mut(&mut change);
                    inner.history.iter_mut().for_each(|line| add_event(line, stored));
                    // Invariant: the evidence is used up by the very commit that it led to.
                    inner.uses = Some(stored.evidence.name.clone());
                    Verdict::Write(change, decision)
                }
                nothing => nothing,
            }
        }
        (EvidenceVerdict::Contradicts, Some(record)) => contradiction(record, nonce, stored),
        (EvidenceVerdict::Early, _) => Verdict::Keep(Decision::Later),
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// Adds the name of the event to a line of history.
fn add_event(line: &mut History, stored: &StoredEvidence) {
    let name = &stored.evidence.name;
    line.detail = format!("{} (event `{}` of `{}`)", line.detail, name.event, name.source);
}

/// Adds the contradiction to the history and changes nothing else: a stored response never changes, and a retryable
/// record may be running again right now.
fn contradiction(record: &Record, nonce: Nonce, stored: &StoredEvidence) -> Verdict {
    let claim = match &stored.evidence.what {
        Observation::Executed(answer) => format!("executed with {}", answer.status),
        Observation::NotExecuted | Observation::Nothing => "not executed".to_owned(),
    };
    let detail = format!("webhook: {claim}, although it is {}", record.state.name());
    let mut line = History { what: HistoryKind::LateAnswer, detail };
    add_event(&mut line, stored);
    let change = Change {
        id: record.id,
        expect: Expect::Version(record.version),
        nonce,
        draft: None,
        response: None,
        clears_bodies: false,
        bodies: Vec::new(),
        history: vec![line],
        uses: None,
    };
    Verdict::Write(Arc::new(change), Decision::Superseded)
}

/// Returns whether a stored response and the evidence cannot both be true.
fn contradicts(record: &Record, what: &Observation) -> bool {
    let failed = |status: u16| status >= 400;
    match (what, record.note.status) {
        (Observation::Executed(AttemptResponse { status, .. }), Some(stored)) => {
            failed(stored) != failed(*status)
        }
        // A stored failure may well mean that nothing was executed.
        (Observation::NotExecuted, Some(stored)) => !failed(stored),
        _ => false,
    }
}

/// Returns whether no call of the effect could be in flight at `as_of`.
fn is_over(effect: &StoredEffect, as_of: Timestamp) -> bool {
    let settle = Duration::from_millis(effect.rules.settle_ms);
    // A process of an older version does not know this field, and leaves the instant of an earlier call in it.
    let ended_at =
        effect.ended_at.filter(|ended_at| effect.called_at.is_none_or(|called_at| called_at <= *ended_at));
    ended_at.is_some_and(|ended_at| ended_at.after(settle) <= as_of)
}

/// Returns whether the provider executed two calls for one effect.
fn is_another(effect: &StoredEffect, what: &Observation) -> bool {
    match (what, &effect.provider_id) {
        (Observation::Executed(answer), Some(known)) => {
            answer.provider_id.as_ref().is_some_and(|id| id != known)
        }
        _ => false,
    }
}

/// Version count of an effect that has just been enqueued.
const FIRST_COUNT: u32 = 1;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::effect::EffectRules;
    use crate::evidence::{EffectRef, EventName, Evidence, EvidenceSubject};
    use crate::machine::AttemptResponse;
    use crate::record::{Nonce, Version};
    use crate::scope::RecordId;
    use EffectState::{Claimed, Dead, Discarded, Done, Queued, Unknown};

    #[test]
    fn executed_settles_an_unknown_effect_at_any_age() {
        for as_of in [0, 5, ENDED_AT, i64::MAX] {
            assert_eq!(
                judge_effect(Some(&effect(Unknown)), &evidence_at(paid("ch_1"), as_of)),
                EvidenceVerdict::Settles
            );
        }
    }

    #[test]
    fn not_executed_counts_once_no_call_can_be_in_flight() {
        let over_at = ENDED_AT + 60_000_000;
        let says =
            |as_of| judge_effect(Some(&effect(Unknown)), &evidence_at(Observation::NotExecuted, as_of));
        assert_eq!(
            (says(over_at - 1), says(over_at)),
            (EvidenceVerdict::Premature, EvidenceVerdict::Settles)
        );
        let without_end = StoredEffect { ended_at: None, ..effect(Unknown) };
        let later = evidence_at(Observation::NotExecuted, i64::MAX);
        assert_eq!(judge_effect(Some(&without_end), &later), EvidenceVerdict::Premature);
        for state in [Queued, Claimed] {
            assert_eq!(judge_effect(Some(&effect(state)), &later), EvidenceVerdict::Premature, "{state:?}");
        }
        assert_eq!(judge_effect(None, &later), EvidenceVerdict::Premature);
    }

    #[test]
    fn evidence_about_a_first_try_is_early() {
        let early = evidence_at(paid("ch_1"), i64::MAX);
        for effect in [None, Some(effect(Queued)), Some(effect(Claimed))] {
            assert_eq!(judge_effect(effect.as_ref(), &early), EvidenceVerdict::Early, "{effect:?}");
        }
    }

    #[test]
    fn executed_settles_an_effect_queued_for_another_try() {
        let again = StoredEffect { version: Version { count: 3, nonce: Nonce(3) }, ..effect(Queued) };
        assert_eq!(judge_effect(Some(&again), &evidence_at(paid("ch_1"), 0)), EvidenceVerdict::Settles);
        let not = evidence_at(Observation::NotExecuted, i64::MAX);
        assert_eq!(judge_effect(Some(&again), &not), EvidenceVerdict::Premature);
    }

    #[test]
    fn the_end_of_an_earlier_call_proves_nothing() {
        let called_since =
            StoredEffect { called_at: Some(Timestamp::from_micros(ENDED_AT + 1)), ..effect(Unknown) };
        let not = evidence_at(Observation::NotExecuted, i64::MAX);
        assert_eq!(judge_effect(Some(&called_since), &not), EvidenceVerdict::Premature);
    }

    #[test]
    fn a_settled_effect_stays_and_contradictions_are_seen() {
        let says = |state, what| judge_effect(Some(&effect(state)), &evidence_at(what, i64::MAX));
        assert_eq!(says(Done, paid("ch_1")), EvidenceVerdict::Known);
        assert_eq!(says(Done, paid("ch_2")), EvidenceVerdict::Contradicts, "two charges under one key");
        assert_eq!(says(Done, Observation::NotExecuted), EvidenceVerdict::Contradicts);
        for state in [Dead, Discarded] {
            assert_eq!(says(state, paid("ch_1")), EvidenceVerdict::Contradicts);
            assert_eq!(says(state, Observation::NotExecuted), EvidenceVerdict::Known);
        }
    }

    const ENDED_AT: i64 = 1_000_000_000;

    fn effect(state: EffectState) -> StoredEffect {
        StoredEffect {
            seq: 1,
            record: RecordId::from_bytes([7; RecordId::LEN]),
            birth: Nonce(1),
            tenant: "ann".into(),
            name: "charge".into(),
            kind: "charge".into(),
            version: Version { count: 1, nonce: Nonce(1) },
            state,
            tries: 1,
            due_at: None,
            created_at: Timestamp::from_micros(0),
            called_at: Some(Timestamp::from_micros(10)),
            ended_at: Some(Timestamp::from_micros(ENDED_AT)),
            done_at: None,
            aggregate: None,
            downstream_key: "ibid-1".into(),
            rules: EffectRules::default(),
            owes: false,
            is_letter: false,
            trace: None,
            payload: Bytes::new(),
            result: None,
            provider_id: Some("ch_1".into()),
            last_error: None,
            now: Timestamp::from_micros(ENDED_AT),
        }
    }

    fn evidence_at(what: Observation, as_of: i64) -> StoredEvidence {
        let evidence = Evidence {
            name: EventName { source: "psp".into(), event: "evt".into() },
            about: EvidenceSubject::Effect(EffectRef::DownstreamKey("ibid-1".into())),
            owner: None,
            what,
            age: Duration::ZERO,
        };
        StoredEvidence { evidence, as_of: Timestamp::from_micros(as_of), open: true }
    }

    fn paid(id: &str) -> Observation {
        Observation::Executed(AttemptResponse {
            status: 201,
            retry_after: false,
            kept: None,
            provider_id: Some(id.into()),
            proof: None,
        })
    }
}
