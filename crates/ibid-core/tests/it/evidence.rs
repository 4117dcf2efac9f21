//! The effect of outside evidence on a record, in every state and for every attempt.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::{Commit, HistoryKind};
use ibid_core::effect::KEY_WINDOW;
use ibid_core::evidence::{EventName, Evidence, EvidenceSubject, StoredEvidence};
use ibid_core::machine::{
    Decision, Event, EvidenceVerdict, Intent, Observation, Verdict, decide, judge_record,
};
use ibid_core::policy::Policy;
use ibid_core::record::{ErrorCode, Nonce, Record, State};
use ibid_core::time::Timestamp;
use ibid_testkit::story::{StoryStore, answer, ask};

struct Play {
    shelf: StoryStore,
    drawn: u64,
}

impl Play {
    fn new() -> Play {
        Play { shelf: StoryStore::new(), drawn: 0 }
    }

    fn nonce(&mut self) -> Nonce {
        self.drawn += 1;
        Nonce(self.drawn)
    }

    /// Decides on the event and commits. Returns the decision.
    fn happens(&mut self, event: &Event<'_>) -> Decision {
        match decide(self.shelf.record(), event, self.shelf.now) {
            Verdict::Keep(decision) => decision,
            Verdict::Write(change, decision) => {
                assert!(matches!(self.shelf.commit(&change), Commit::Done(_)), "no other write interferes");
                decision
            }
        }
    }

    fn begins(&mut self) -> Record {
        let nonce = self.nonce();
        let ask = ask("ann", "five", Arc::new(Policy::default()), nonce);
        let decision = self.happens(&Event::Request { ask: &ask, role: Intent::MayRun });
        assert!(matches!(decision, Decision::Run { .. }), "{decision:?}");
        self.record()
    }

    fn becomes_unknown(&mut self, begun: &Record) {
        let nonce = self.nonce();
        let decision = self.happens(&Event::Uncertain { begun, nonce, why: ErrorCode::TimedOut });
        assert_eq!(decision, Decision::Unsettled);
    }

    fn waits_for_the_attempts_end(&mut self) {
        self.shelf.now = self.shelf.now.after(Policy::default().over_in());
    }

    fn apply(&mut self, stored: &StoredEvidence) -> Decision {
        let nonce = self.nonce();
        self.happens(&Event::Evidence { nonce, evidence: stored })
    }

    fn record(&self) -> Record {
        self.shelf.record().expect("a record").clone()
    }

    /// Returns evidence that arrives now about the present record.
    fn arrives(&self, what: Observation) -> StoredEvidence {
        let ask = ask("ann", "five", Arc::new(Policy::default()), Nonce(0));
        let evidence = Evidence {
            name: EventName { source: "psp".into(), event: "evt".into() },
            about: EvidenceSubject::Record(ask.id),
            owner: self.shelf.record().map(|record| record.owner),
            what,
            age: Duration::ZERO,
        };
        StoredEvidence { evidence, as_of: self.shelf.now, open: true }
    }
}

fn paid() -> Observation {
    Observation::Executed(answer(201, "psp"))
}

#[test]
fn evidence_settles_an_unknown_record_once() {
    for (what, state) in [(paid(), State::Completed), (Observation::NotExecuted, State::Retryable)] {
        let mut play = Play::new();
        let record = play.begins();
        play.becomes_unknown(&record);
        play.waits_for_the_attempts_end();
        let stored = play.arrives(what);
        let event = Event::Evidence { nonce: Nonce(99), evidence: &stored };
        let Verdict::Write(change, _) = decide(play.shelf.record(), &event, play.shelf.now) else {
            panic!("it settles the record")
        };
        assert_eq!(change.uses.as_ref(), Some(&stored.evidence.name));
        assert_eq!(play.apply(&stored), Decision::Settled);
        assert_eq!(play.record().state, state);
        let line = play.shelf.history().last().expect("the history has a line");
        assert!(
            line.what == HistoryKind::Settled && line.detail.ends_with("(event `evt` of `psp`)"),
            "{line:?}"
        );
    }
}

#[test]
fn early_evidence_waits_until_the_outcome_is_unknown() {
    let mut play = Play::new();
    let record = play.begins();
    let stored = play.arrives(paid());
    assert_eq!(play.apply(&stored), Decision::Later);
    assert_eq!(play.record(), record, "nothing changes");
    play.becomes_unknown(&record);
    assert_eq!(play.apply(&stored), Decision::Settled);
    assert_eq!(judge_record(None, &stored), EvidenceVerdict::Early, "a record that is not there may come");
}

#[test]
fn not_executed_from_before_the_attempts_end_is_premature() {
    let mut play = Play::new();
    let mut early = vec![play.arrives(Observation::NotExecuted)];
    let record = play.begins();
    early.push(play.arrives(Observation::NotExecuted));
    assert_eq!(judge_record(None, &early[0]), EvidenceVerdict::Premature, "it may be about to run");
    assert_eq!(judge_record(Some(&record), &early[1]), EvidenceVerdict::Premature, "it runs");
    assert_eq!(play.apply(&early[1]), Decision::Ignored);
    play.becomes_unknown(&record);
    let over_at = record.ran_at.expect("it ran").after(record.policy.over_in());
    early.push(StoredEvidence { as_of: over_at.before(Duration::from_micros(1)), ..early[1].clone() });
    play.waits_for_the_attempts_end();
    for stored in &early {
        assert_eq!(
            judge_record(play.shelf.record(), stored),
            EvidenceVerdict::Premature,
            "{:?}",
            stored.as_of
        );
        assert_eq!(play.apply(stored), Decision::Ignored);
    }
    assert_eq!(play.record().state, State::Unknown);
    let over = StoredEvidence { as_of: over_at, ..early[1].clone() };
    assert_eq!(judge_record(play.shelf.record(), &over), EvidenceVerdict::Settles);
    assert_eq!(play.apply(&over), Decision::Settled);
}

#[test]
fn not_executed_never_releases_an_overdue_attempt() {
    let mut play = Play::new();
    play.begins();
    play.waits_for_the_attempts_end();
    let stored = play.arrives(Observation::NotExecuted);
    assert_eq!(judge_record(play.shelf.record(), &stored), EvidenceVerdict::Premature);
    assert_eq!(play.apply(&stored), Decision::Ignored);
}

#[test]
fn evidence_on_an_attempt_never_settles_the_next_one() {
    let mut play = Play::new();
    let first = play.begins();
    play.becomes_unknown(&first);
    play.waits_for_the_attempts_end();
    let stored = play.arrives(paid());
    assert_eq!(play.apply(&play.arrives(Observation::NotExecuted)), Decision::Settled);
    let second = play.begins();
    play.becomes_unknown(&second);
    // The store's clock was set back, and the arrival looks later than the second attempt's begin.
    let later = StoredEvidence { as_of: Timestamp::from_micros(i64::MAX), ..stored.clone() };
    for old in [stored, later] {
        assert_eq!(judge_record(play.shelf.record(), &old), EvidenceVerdict::Stale);
        assert_eq!(play.apply(&old), Decision::Ignored);
        assert_eq!(play.record().state, State::Unknown);
    }
    assert_eq!(play.apply(&play.arrives(paid())), Decision::Settled, "what speaks of it settles it");
}

#[test]
fn evidence_from_before_the_attempt_is_stale() {
    let mut play = Play::new();
    let record = play.begins();
    play.becomes_unknown(&record);
    let arrived = play.arrives(paid());
    let ran_at = record.ran_at.expect("it ran");
    let before = StoredEvidence { as_of: ran_at.before(Duration::from_micros(1)), ..arrived.clone() };
    assert_eq!(play.apply(&before), Decision::Ignored);
    let unowned = Evidence { owner: None, ..arrived.evidence.clone() };
    let early = StoredEvidence { as_of: before.as_of, evidence: unowned.clone(), ..arrived.clone() };
    assert_eq!(play.apply(&early), Decision::Ignored, "nor if there was no record when it arrived");
    assert_eq!(
        play.apply(&StoredEvidence { as_of: ran_at, evidence: unowned, ..arrived }),
        Decision::Settled
    );
}

#[test]
fn evidence_against_a_known_outcome_only_adds_history() {
    for (status, what, expected) in [
        (201, paid(), EvidenceVerdict::Known),
        (201, Observation::Executed(answer(402, "psp")), EvidenceVerdict::Contradicts),
        (201, Observation::NotExecuted, EvidenceVerdict::Contradicts),
        (402, Observation::NotExecuted, EvidenceVerdict::Known),
        (402, paid(), EvidenceVerdict::Contradicts),
        (429, Observation::NotExecuted, EvidenceVerdict::Known),
        (429, paid(), EvidenceVerdict::Contradicts),
    ] {
        let mut play = Play::new();
        let record = play.begins();
        let (nonce, response) = (play.nonce(), answer(status, "upstream"));
        play.happens(&Event::Answered { begun: &record, nonce, answer: &response });
        let (before, lines) = (play.record(), play.shelf.history().len());
        let stored = play.arrives(what);
        assert_eq!(judge_record(Some(&before), &stored), expected, "{status}");
        let decision = play.apply(&stored);
        assert_eq!(play.record(), before, "{status}: nothing changes");
        let added = play.shelf.history().len() - lines;
        let contradicts = expected == EvidenceVerdict::Contradicts;
        assert_eq!(
            (decision == Decision::Superseded, added),
            (contradicts, usize::from(contradicts)),
            "{status}"
        );
    }
}

#[test]
fn evidence_on_an_in_doubt_call_waits_until_it_can_not_repeat() {
    let mut play = Play::new();
    let mut record = play.begins();
    record.note.doubt = Some(1);
    let nonce = play.nonce();
    play.happens(&Event::NotExecuted { begun: &record, nonce, why: ErrorCode::NotSent });
    assert_eq!(play.record().state, State::Retryable);
    play.waits_for_the_attempts_end();
    let stored = play.arrives(Observation::Executed(answer(201, "psp")));
    assert_eq!(judge_record(play.shelf.record(), &stored), EvidenceVerdict::Early);
    assert_eq!(
        judge_record(play.shelf.record(), &play.arrives(Observation::NotExecuted)),
        EvidenceVerdict::Premature
    );
    assert_eq!(play.apply(&stored), Decision::Later);
    play.shelf.now = play.shelf.now.after(KEY_WINDOW);
    let nonce = play.nonce();
    assert_eq!(play.happens(&Event::Lapsed { nonce, careful: false }), Decision::Settled);
    assert_eq!(play.apply(&stored), Decision::Settled);
    assert_eq!(play.record().note.status, Some(201));
}
