//! What evidence from outside proves about a record or an effect. It settles an unknown outcome, keeps a call that was
//! made from being made again, and changes nothing else.
//!
//! For an effect, "executed" is never stale. A downstream key belongs to one effect of one generation of one record, and an
//! id of the provider to one call of it, so whichever try made the call, it is done, and no other may be made.
//!
//! "Not executed" proves something only of an instant at which no call could be in flight any more. For an effect that is
//! [`EffectRules::settle_ms`] after the last call was over or its worker given up. Each later try replaces that instant, and it
//! is gone while the outcome is known, so evidence from before the present try never counts. A claimed effect gets its next
//! event from its worker: no webhook takes it away from a worker. An effect that was never claimed was not called, so
//! evidence about it is kept.
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

/// What evidence proves about a record, or an effect, in its present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvidenceVerdict {
    /// The outcome is unknown, and this settles it.
    Settles,
    /// The outcome may become unknown, and then this settles it.
    Early,
    /// It says "not executed" of an instant at which the call could still be made: it never settles anything.
    Premature,
    /// It is about an earlier attempt, and never settles this one.
    Stale,
    /// The outcome is known already, and this says the same.
    Known,
    /// The outcome is known already, and this says something else: an operator should learn of it.
    Contradicts,
}

/// Judges evidence about a record; none: the record does not exist, or not yet.
pub fn judge_record(record: Option<&Record>, kept: &StoredEvidence) -> EvidenceVerdict {
    let frees = kept.evidence.what == Observation::NotExecuted;
    let Some(record) = record else { return judge_open(frees) };
    // Two tests, because a store's clock may be set back: an attempt that began after the arrival is another owner.
    let is_other = kept.evidence.owner.is_some_and(|owner| owner != record.owner);
    if is_other || record.ran_at.is_some_and(|ran_at| kept.as_of < ran_at) {
        return EvidenceVerdict::Stale;
    }
    match record.state {
        State::Unknown if frees && !upkeep::is_over(record, kept.as_of) => EvidenceVerdict::Premature,
        State::Unknown => EvidenceVerdict::Settles,
        // It may be run again, which says nothing of what was done.
        State::Pending | State::Retryable if record.note.doubt.is_some() => judge_open(frees),
        // An accepted request that waits for its next run is like a `retryable` one.
        State::Pending if record.attempt > 0 && !record.flags.owed => judge_retryable(kept),
        State::InProgress | State::Pending => judge_open(frees),
        State::Completed if contradicts(record, &kept.evidence.what) => EvidenceVerdict::Contradicts,
        State::Completed => EvidenceVerdict::Known,
        State::Retryable => judge_retryable(kept),
    }
}

/// Judges evidence about an effect; none: the effect does not exist, or not yet.
pub fn judge_effect(effect: Option<&StoredEffect>, kept: &StoredEvidence) -> EvidenceVerdict {
    let frees = kept.evidence.what == Observation::NotExecuted;
    let Some(effect) = effect else { return judge_open(frees) };
    match effect.state {
        EffectState::Unknown if frees && !is_over(effect, kept.as_of) => EvidenceVerdict::Premature,
        EffectState::Unknown => EvidenceVerdict::Settles,
        EffectState::Queued if !frees && effect.version.count > FIRST => EvidenceVerdict::Settles,
        EffectState::Queued | EffectState::Claimed => judge_open(frees),
        EffectState::Done if frees || is_another(effect, &kept.evidence.what) => EvidenceVerdict::Contradicts,
        EffectState::Done => EvidenceVerdict::Known,
        // An operator must learn that the call was made after all.
        EffectState::Dead | EffectState::Discarded if !frees => EvidenceVerdict::Contradicts,
        EffectState::Dead | EffectState::Discarded => EvidenceVerdict::Known,
    }
}

/// The outcome is still open. However long it has run: a call that was not seen yet may be about to be made.
fn judge_open(frees: bool) -> EvidenceVerdict {
    if frees { EvidenceVerdict::Premature } else { EvidenceVerdict::Early }
}

fn judge_retryable(kept: &StoredEvidence) -> EvidenceVerdict {
    match kept.evidence.what {
        Observation::Executed(_) => EvidenceVerdict::Contradicts,
        Observation::NotExecuted | Observation::Nothing => EvidenceVerdict::Known,
    }
}

/// Applies evidence to a record.
pub(super) fn apply(record: Option<&Record>, nonce: Nonce, kept: &StoredEvidence) -> Verdict {
    match (judge_record(record, kept), record) {
        (EvidenceVerdict::Settles, Some(record)) => {
            let what = &kept.evidence.what;
            match upkeep::observed(Some(record), nonce, ObservedBy::Webhook, what, kept.as_of, 0.0) {
                Verdict::Write(mut change, decision) => {
                    let told = Arc::make_mut(&mut change);
                    told.history.iter_mut().for_each(|line| add_event(line, kept));
                    // Invariant: the evidence is used up by the very commit that it led to.
                    told.uses = Some(kept.evidence.name.clone());
                    Verdict::Write(change, decision)
                }
                nothing => nothing,
            }
        }
        (EvidenceVerdict::Contradicts, Some(record)) => contradiction(record, nonce, kept),
        (EvidenceVerdict::Early, _) => Verdict::Keep(Decision::Later),
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// Adds the name of the event to a line of history.
fn add_event(line: &mut History, kept: &StoredEvidence) {
    let name = &kept.evidence.name;
    line.detail = format!("{} (event `{}` of `{}`)", line.detail, name.event, name.source);
}

/// Only the history grows: a stored response never changes, and a retryable record may be running again right now.
fn contradiction(record: &Record, nonce: Nonce, kept: &StoredEvidence) -> Verdict {
    let says = match &kept.evidence.what {
        Observation::Executed(answer) => format!("executed with {}", answer.status),
        Observation::NotExecuted | Observation::Nothing => "not executed".to_owned(),
    };
    let detail = format!("webhook: {says}, although it is {}", record.state.name());
    let mut line = History { what: HistoryKind::LateAnswer, detail };
    add_event(&mut line, kept);
    let change = Change {
        id: record.id,
        expect: Expect::Version(record.version),
        nonce,
        draft: None,
        clears_bodies: false,
        bodies: Vec::new(),
        history: vec![line],
        uses: None,
    };
    Verdict::Write(Arc::new(change), Decision::Superseded)
}

/// Whether a stored response and the evidence cannot both be true.
fn contradicts(record: &Record, what: &Observation) -> bool {
    let failed = |status: u16| status >= 400;
    match (what, record.note.status) {
        (Observation::Executed(AttemptResponse { status, .. }), Some(stored)) => {
            failed(stored) != failed(*status)
        }
        // A stored failure may well stand for something that was not executed.
        (Observation::NotExecuted, Some(stored)) => !failed(stored),
        _ => false,
    }
}

/// Whether no call of the effect could be in flight at that instant.
fn is_over(effect: &StoredEffect, as_of: Timestamp) -> bool {
    let settle = Duration::from_millis(effect.rules.settle_ms);
    // A process that does not know this field leaves the instant of an earlier call.
    let ended_at =
        effect.ended_at.filter(|ended_at| effect.called_at.is_none_or(|called_at| called_at <= *ended_at));
    ended_at.is_some_and(|ended_at| ended_at.after(settle) <= as_of)
}

/// Whether the provider did two things for one effect.
fn is_another(effect: &StoredEffect, what: &Observation) -> bool {
    match (what, &effect.provider_id) {
        (Observation::Executed(answer), Some(known)) => {
            answer.provider_id.as_ref().is_some_and(|id| id != known)
        }
        _ => false,
    }
}

/// The count of the version that an effect is enqueued at.
const FIRST: u32 = 1;

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
                judge_effect(Some(&effect(Unknown)), &told(paid("ch_1"), as_of)),
                EvidenceVerdict::Settles
            );
        }
    }

    #[test]
    fn not_executed_counts_once_no_call_can_be_in_flight() {
        let over_at = ENDED_AT + 60_000_000;
        let says = |as_of| judge_effect(Some(&effect(Unknown)), &told(Observation::NotExecuted, as_of));
        assert_eq!(
            (says(over_at - 1), says(over_at)),
            (EvidenceVerdict::Premature, EvidenceVerdict::Settles)
        );
        let without_end = StoredEffect { ended_at: None, ..effect(Unknown) };
        let later = told(Observation::NotExecuted, i64::MAX);
        assert_eq!(judge_effect(Some(&without_end), &later), EvidenceVerdict::Premature);
        for state in [Queued, Claimed] {
            assert_eq!(judge_effect(Some(&effect(state)), &later), EvidenceVerdict::Premature, "{state:?}");
        }
        assert_eq!(judge_effect(None, &later), EvidenceVerdict::Premature);
    }

    #[test]
    fn evidence_about_a_first_try_is_early() {
        let early = told(paid("ch_1"), i64::MAX);
        for effect in [None, Some(effect(Queued)), Some(effect(Claimed))] {
            assert_eq!(judge_effect(effect.as_ref(), &early), EvidenceVerdict::Early, "{effect:?}");
        }
    }

    #[test]
    fn executed_settles_an_effect_queued_for_another_try() {
        let again = StoredEffect { version: Version { count: 3, nonce: Nonce(3) }, ..effect(Queued) };
        assert_eq!(judge_effect(Some(&again), &told(paid("ch_1"), 0)), EvidenceVerdict::Settles);
        let not = told(Observation::NotExecuted, i64::MAX);
        assert_eq!(judge_effect(Some(&again), &not), EvidenceVerdict::Premature);
    }

    #[test]
    fn the_end_of_an_earlier_call_proves_nothing() {
        let called_since =
            StoredEffect { called_at: Some(Timestamp::from_micros(ENDED_AT + 1)), ..effect(Unknown) };
        let not = told(Observation::NotExecuted, i64::MAX);
        assert_eq!(judge_effect(Some(&called_since), &not), EvidenceVerdict::Premature);
    }

    #[test]
    fn a_settled_effect_stays_and_contradictions_are_seen() {
        let says = |state, what| judge_effect(Some(&effect(state)), &told(what, i64::MAX));
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
            record: RecordId::from_bytes([7; 32]),
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
            trace: None,
            payload: Bytes::new(),
            result: None,
            provider_id: Some("ch_1".into()),
            last_error: None,
            now: Timestamp::from_micros(ENDED_AT),
        }
    }

    fn told(what: Observation, as_of: i64) -> StoredEvidence {
        let evidence = Evidence {
            name: EventName { source: "psp".into(), event: "evt".into() },
            about: EvidenceSubject::Effect(EffectRef::DownstreamKey("ibid-1".into())),
            owner: None,
            what,
            age: Duration::ZERO,
        };
        StoredEvidence { seq: 1, evidence, as_of: Timestamp::from_micros(as_of), open: true }
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
