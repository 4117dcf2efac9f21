//! What evidence from outside does to a record, in every state and for every Attempt.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::{Commit, Happened};
use ibid_core::effect::KEY_WINDOW;
use ibid_core::evidence::{About, EventName, Evidence, Kept};
use ibid_core::machine::{Decision, Event, EvidenceVerdict, Found, Role, Verdict, decide, judge_record};
use ibid_core::policy::Policy;
use ibid_core::record::{ErrorCode, Nonce, Record, State};
use ibid_core::time::Timestamp;
use ibid_testkit::story::{Shelf, answer, ask};

struct Play {
    shelf: Shelf,
    drawn: u64,
}

impl Play {
    fn new() -> Play {
        Play { shelf: Shelf::new(), drawn: 0 }
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
        let begun = self.happens(&Event::Request { ask: &ask, role: Role::Caller });
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

    fn told(&mut self, kept: &Kept) -> Decision {
        let nonce = self.nonce();
        self.happens(&Event::Told { nonce, kept })
    }

    fn record(&self) -> Record {
        self.shelf.record().expect("a record").clone()
    }

    /// What arrives now about the record as it stands.
    fn arrives(&self, what: Found) -> Kept {
        let ask = ask("ann", "five", Arc::new(Policy::default()), Nonce(0));
        let evidence = Evidence {
            name: EventName { source: "psp".into(), event: "evt".into() },
            about: About::Record(ask.id),
            owner: self.shelf.record().map(|record| record.owner),
            what,
            age: Duration::ZERO,
        };
        Kept { seq: 1, evidence, as_of: self.shelf.now, open: true }
    }
}

fn paid() -> Found {
    Found::Executed(answer(201, "psp"))
}

#[test]
fn evidence_settles_what_is_unknown_and_is_used_up_by_that_commit() {
    for (what, state) in [(paid(), State::Completed), (Found::NotExecuted, State::Retryable)] {
        let mut play = Play::new();
        let begun = play.begins();
        play.becomes_unknown(&begun);
        play.waits_for_the_attempts_end();
        let kept = play.arrives(what);
        let event = Event::Told { nonce: Nonce(99), kept: &kept };
        let Verdict::Write(change, _) = decide(play.shelf.record(), &event, play.shelf.now) else {
            panic!("it settles the record")
        };
        assert_eq!(change.uses.as_ref(), Some(&kept.evidence.name));
        assert_eq!(play.told(&kept), Decision::Settled);
        assert_eq!(play.record().state, state);
        let line = play.shelf.history().last().expect("it is told");
        assert!(
            line.what == Happened::Settled && line.detail.ends_with("(event `evt` of `psp`)"),
            "{line:?}"
        );
    }
}

#[test]
fn evidence_that_comes_early_changes_nothing_until_the_outcome_is_unknown() {
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
fn not_executed_from_before_the_attempts_end_never_frees_the_key_whenever_it_is_weighed() {
    let mut play = Play::new();
    let mut early = vec![play.arrives(Found::NotExecuted)];
    let begun = play.begins();
    early.push(play.arrives(Found::NotExecuted));
    assert_eq!(judge_record(None, &early[0]), EvidenceVerdict::Premature, "it may be about to run");
    assert_eq!(judge_record(Some(&begun), &early[1]), EvidenceVerdict::Premature, "it runs");
    assert_eq!(play.told(&early[1]), Decision::Ignored);
    play.becomes_unknown(&begun);
    let over_at = begun.ran_at.expect("it ran").after(begun.policy.over_in());
    early.push(Kept { as_of: over_at.before(Duration::from_micros(1)), ..early[1].clone() });
    play.waits_for_the_attempts_end();
    for kept in &early {
        assert_eq!(judge_record(play.shelf.record(), kept), EvidenceVerdict::Premature, "{:?}", kept.as_of);
        assert_eq!(play.told(kept), Decision::Ignored);
    }
    assert_eq!(play.record().state, State::Unknown);
    let over = Kept { as_of: over_at, ..early[1].clone() };
    assert_eq!(judge_record(play.shelf.record(), &over), EvidenceVerdict::Settles);
    assert_eq!(play.told(&over), Decision::Settled);
}

#[test]
fn what_runs_for_longer_than_it_should_is_not_free_because_somebody_saw_nothing() {
    let mut play = Play::new();
    play.begins();
    play.waits_for_the_attempts_end();
    let kept = play.arrives(Found::NotExecuted);
    assert_eq!(judge_record(play.shelf.record(), &kept), EvidenceVerdict::Premature);
    assert_eq!(play.told(&kept), Decision::Ignored);
}

#[test]
fn evidence_on_an_attempt_never_settles_the_next_one_whatever_the_clock_says() {
    let mut play = Play::new();
    let first = play.begins();
    play.becomes_unknown(&first);
    play.waits_for_the_attempts_end();
    let kept = play.arrives(paid());
    assert_eq!(play.told(&play.arrives(Found::NotExecuted)), Decision::Settled);
    let second = play.begins();
    play.becomes_unknown(&second);
    // The store's clock was set back, and the arrival looks later than the second attempt's begin.
    let later = Kept { as_of: Timestamp::from_micros(i64::MAX), ..kept.clone() };
    for old in [kept, later] {
        assert_eq!(judge_record(play.shelf.record(), &old), EvidenceVerdict::Stale);
        assert_eq!(play.told(&old), Decision::Ignored);
        assert_eq!(play.record().state, State::Unknown);
    }
    assert_eq!(play.told(&play.arrives(paid())), Decision::Settled, "what speaks of it settles it");
}

#[test]
fn evidence_from_before_the_attempts_begin_is_stale_even_if_it_arrives_after_it() {
    let mut play = Play::new();
    let begun = play.begins();
    play.becomes_unknown(&begun);
    let arrived = play.arrives(paid());
    let ran_at = begun.ran_at.expect("it ran");
    let before = Kept { as_of: ran_at.before(Duration::from_micros(1)), ..arrived.clone() };
    assert_eq!(play.told(&before), Decision::Ignored);
    let nobody = Evidence { owner: None, ..arrived.evidence.clone() };
    let early = Kept { as_of: before.as_of, evidence: nobody.clone(), ..arrived.clone() };
    assert_eq!(play.told(&early), Decision::Ignored, "nor if there was no record when it arrived");
    assert_eq!(play.told(&Kept { as_of: ran_at, evidence: nobody, ..arrived }), Decision::Settled);
}

#[test]
fn a_stored_answer_and_a_free_key_stay_as_they_are_and_contradictions_are_told() {
    for (stored, what, expected) in [
        (201, paid(), EvidenceVerdict::Known),
        (201, Found::Executed(answer(402, "psp")), EvidenceVerdict::Contradicts),
        (201, Found::NotExecuted, EvidenceVerdict::Contradicts),
        (402, Found::NotExecuted, EvidenceVerdict::Known),
        (402, paid(), EvidenceVerdict::Contradicts),
        (429, Found::NotExecuted, EvidenceVerdict::Known),
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
fn what_is_said_of_a_call_in_doubt_waits_until_nobody_can_make_it_again() {
    let mut play = Play::new();
    let mut begun = play.begins();
    begun.note.doubt = Some(1);
    let nonce = play.nonce();
    play.happens(&Event::NotExecuted { begun: &begun, nonce, why: ErrorCode::NotSent });
    assert_eq!(play.record().state, State::Retryable);
    play.waits_for_the_attempts_end();
    let kept = play.arrives(Found::Executed(answer(201, "psp")));
    assert_eq!(judge_record(play.shelf.record(), &kept), EvidenceVerdict::Early);
    assert_eq!(
        judge_record(play.shelf.record(), &play.arrives(Found::NotExecuted)),
        EvidenceVerdict::Premature
    );
    assert_eq!(play.told(&kept), Decision::Later);
    play.shelf.now = play.shelf.now.after(KEY_WINDOW);
    let nonce = play.nonce();
    assert_eq!(play.happens(&Event::Lapsed { nonce, careful: false }), Decision::Settled);
    assert_eq!(play.told(&kept), Decision::Settled);
    assert_eq!(play.record().note.status, Some(201));
}
