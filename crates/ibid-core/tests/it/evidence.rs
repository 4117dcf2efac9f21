//! What evidence from outside does to a record, in every state and for every Attempt.

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

    /// Decides and commits; what came of it.
    fn happens(&mut self, event: &Event<'_>) -> Decision {
        match decide(self.shelf.record(), event, self.shelf.now) {
            Verdict::Keep(decision) => decision,
            Verdict::Write(change, decision) => {
                assert!(matches!(self.shelf.commit(&change), Commit::Done(_)), "nobody stands in its way");
                decision
            }
        }
    }

    fn begins(&mut self) -> Record {
        let nonce = self.nonce();
        let ask = ask("ann", "five", Arc::new(Policy::default()), nonce);
        let begun = self.happens(&Event::Request { ask: &ask, role: Intent::MayRun });
        assert!(matches!(begun, Decision::Run { .. }), "{begun:?}");
        self.record()
    }

    fn becomes_unknown(&mut self, begun: &Record) {
        let nonce = self.nonce();
        let ended = self.happens(&Event::Uncertain { begun, nonce, why: ErrorCode::TimedOut });
        assert_eq!(ended, Decision::Unsettled);
    }

    fn waits_for_the_attempts_end(&mut self) {
        self.shelf.now = self.shelf.now.after(Policy::default().over_in());
    }

    fn told(&mut self, kept: &StoredEvidence) -> Decision {
        let nonce = self.nonce();
        self.happens(&Event::Evidence { nonce, evidence: kept })
    }

    fn record(&self) -> Record {
        self.shelf.record().expect("a record").clone()
    }

    /// What arrives now about the record as it stands.
    fn arrives(&self, what: Observation) -> StoredEvidence {
        let ask = ask("ann", "five", Arc::new(Policy::default()), Nonce(0));
        let evidence = Evidence {
            name: EventName { source: "psp".into(), event: "evt".into() },
            about: EvidenceSubject::Record(ask.id),
            owner: self.shelf.record().map(|record| record.owner),
            what,
            age: Duration::ZERO,
        };
        StoredEvidence { seq: 1, evidence, as_of: self.shelf.now, open: true }
    }
}

fn paid() -> Observation {
    Observation::Executed(answer(201, "psp"))
}

#[test]
fn evidence_settles_an_unknown_record_once() {
    for (what, state) in [(paid(), State::Completed), (Observation::NotExecuted, State::Retryable)] {
        let mut play = Play::new();
        let begun = play.begins();
        play.becomes_unknown(&begun);
        play.waits_for_the_attempts_end();
        let kept = play.arrives(what);
        let event = Event::Evidence { nonce: Nonce(99), evidence: &kept };
        let Verdict::Write(change, _) = decide(play.shelf.record(), &event, play.shelf.now) else {
            panic!("it settles the record")
        };
        assert_eq!(change.uses.as_ref(), Some(&kept.evidence.name));
        assert_eq!(play.told(&kept), Decision::Settled);
        assert_eq!(play.record().state, state);
        let line = play.shelf.history().last().expect("it is told");
        assert!(
            line.what == HistoryKind::Settled && line.detail.ends_with("(event `evt` of `psp`)"),
            "{line:?}"
        );
    }
}

#[test]
fn early_evidence_waits_until_the_outcome_is_unknown() {
    let mut play = Play::new();
    let begun = play.begins();
    let kept = play.arrives(paid());
    assert_eq!(play.told(&kept), Decision::Later);
    assert_eq!(play.record(), begun, "nothing changes");
    play.becomes_unknown(&begun);
    assert_eq!(play.told(&kept), Decision::Settled);
    assert_eq!(judge_record(None, &kept), EvidenceVerdict::Early, "a record that is not there may come");
}

#[test]
fn not_executed_from_before_the_attempts_end_is_premature() {
    let mut play = Play::new();
    let mut early = vec![play.arrives(Observation::NotExecuted)];
    let begun = play.begins();
    early.push(play.arrives(Observation::NotExecuted));
    assert_eq!(judge_record(None, &early[0]), EvidenceVerdict::Premature, "it may be about to run");
    assert_eq!(judge_record(Some(&begun), &early[1]), EvidenceVerdict::Premature, "it runs");
    assert_eq!(play.told(&early[1]), Decision::Ignored);
    play.becomes_unknown(&begun);
    let over_at = begun.ran_at.expect("it ran").after(begun.policy.over_in());
    early.push(StoredEvidence { as_of: over_at.before(Duration::from_micros(1)), ..early[1].clone() });
    play.waits_for_the_attempts_end();
    for kept in &early {
        assert_eq!(judge_record(play.shelf.record(), kept), EvidenceVerdict::Premature, "{:?}", kept.as_of);
        assert_eq!(play.told(kept), Decision::Ignored);
    }
    assert_eq!(play.record().state, State::Unknown);
    let over = StoredEvidence { as_of: over_at, ..early[1].clone() };
    assert_eq!(judge_record(play.shelf.record(), &over), EvidenceVerdict::Settles);
    assert_eq!(play.told(&over), Decision::Settled);
}

#[test]
fn not_executed_never_releases_an_overdue_attempt() {
    let mut play = Play::new();
    play.begins();
    play.waits_for_the_attempts_end();
    let kept = play.arrives(Observation::NotExecuted);
    assert_eq!(judge_record(play.shelf.record(), &kept), EvidenceVerdict::Premature);
    assert_eq!(play.told(&kept), Decision::Ignored);
}

#[test]
fn evidence_on_an_attempt_never_settles_the_next_one() {
    let mut play = Play::new();
    let first = play.begins();
    play.becomes_unknown(&first);
    play.waits_for_the_attempts_end();
    let kept = play.arrives(paid());
    assert_eq!(play.told(&play.arrives(Observation::NotExecuted)), Decision::Settled);
    let second = play.begins();
    play.becomes_unknown(&second);
    // The store's clock was set back, and the arrival looks later than the second attempt's begin.
    let later = StoredEvidence { as_of: Timestamp::from_micros(i64::MAX), ..kept.clone() };
    for old in [kept, later] {
        assert_eq!(judge_record(play.shelf.record(), &old), EvidenceVerdict::Stale);
        assert_eq!(play.told(&old), Decision::Ignored);
        assert_eq!(play.record().state, State::Unknown);
    }
    assert_eq!(play.told(&play.arrives(paid())), Decision::Settled, "what speaks of it settles it");
}

#[test]
fn evidence_from_before_the_attempt_is_stale() {
    let mut play = Play::new();
    let begun = play.begins();
    play.becomes_unknown(&begun);
    let arrived = play.arrives(paid());
    let ran_at = begun.ran_at.expect("it ran");
    let before = StoredEvidence { as_of: ran_at.before(Duration::from_micros(1)), ..arrived.clone() };
    assert_eq!(play.told(&before), Decision::Ignored);
    let nobody = Evidence { owner: None, ..arrived.evidence.clone() };
    let early = StoredEvidence { as_of: before.as_of, evidence: nobody.clone(), ..arrived.clone() };
    assert_eq!(play.told(&early), Decision::Ignored, "nor if there was no record when it arrived");
    assert_eq!(play.told(&StoredEvidence { as_of: ran_at, evidence: nobody, ..arrived }), Decision::Settled);
}

#[test]
fn evidence_against_a_known_outcome_only_adds_history() {
    for (stored, what, expected) in [
        (201, paid(), EvidenceVerdict::Known),
        (201, Observation::Executed(answer(402, "psp")), EvidenceVerdict::Contradicts),
        (201, Observation::NotExecuted, EvidenceVerdict::Contradicts),
        (402, Observation::NotExecuted, EvidenceVerdict::Known),
        (402, paid(), EvidenceVerdict::Contradicts),
        (429, Observation::NotExecuted, EvidenceVerdict::Known),
        (429, paid(), EvidenceVerdict::Contradicts),
    ] {
        let mut play = Play::new();
        let begun = play.begins();
        let (nonce, said) = (play.nonce(), answer(stored, "upstream"));
        play.happens(&Event::Answered { begun: &begun, nonce, answer: &said });
        let (before, lines) = (play.record(), play.shelf.history().len());
        let kept = play.arrives(what);
        assert_eq!(judge_record(Some(&before), &kept), expected, "{stored}");
        let told = play.told(&kept);
        assert_eq!(play.record(), before, "{stored}: nothing changes");
        let added = play.shelf.history().len() - lines;
        let contradicts = expected == EvidenceVerdict::Contradicts;
        assert_eq!(
            (told == Decision::Superseded, added),
            (contradicts, usize::from(contradicts)),
            "{stored}"
        );
    }
}

#[test]
fn evidence_on_an_in_doubt_call_waits_until_it_can_not_repeat() {
    let mut play = Play::new();
    let mut begun = play.begins();
    begun.note.doubt = Some(1);
    let nonce = play.nonce();
    play.happens(&Event::NotExecuted { begun: &begun, nonce, why: ErrorCode::NotSent });
    assert_eq!(play.record().state, State::Retryable);
    play.waits_for_the_attempts_end();
    let kept = play.arrives(Observation::Executed(answer(201, "psp")));
    assert_eq!(judge_record(play.shelf.record(), &kept), EvidenceVerdict::Early);
    assert_eq!(
        judge_record(play.shelf.record(), &play.arrives(Observation::NotExecuted)),
        EvidenceVerdict::Premature
    );
    assert_eq!(play.told(&kept), Decision::Later);
    play.shelf.now = play.shelf.now.after(KEY_WINDOW);
    let nonce = play.nonce();
    assert_eq!(play.happens(&Event::Lapsed { nonce, careful: false }), Decision::Settled);
    assert_eq!(play.told(&kept), Decision::Settled);
    assert_eq!(play.record().note.status, Some(201));
}
