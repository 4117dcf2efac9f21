//! The situations of a record that the machine distinguishes, each with the events that lead there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ibid_core::effect::KEY_WINDOW;
use ibid_core::machine::{AttemptResponse, Event, Intent, Observation, ObservedBy, Verdict, decide};
use ibid_core::policy::{AfterExpiry, Policy};
use ibid_core::record::{Nonce, Record};
use ibid_core::time::Timestamp;
use ibid_testkit::story::{StoryStore, answer, ask};

use super::events::attempt_says;

/// One heading of the page: a situation of a record.
pub(super) struct Situation {
    pub(super) title: &'static str,
    pub(super) make: fn(Arc<Policy>) -> Option<Scene>,
}

/// A record in some situation, with the attempt that owns it and an earlier one.
pub(super) struct Scene {
    pub(super) record: Option<Record>,
    pub(super) begun: Option<Record>,
    pub(super) earlier: Option<Record>,
    pub(super) now: Timestamp,
}

/// Returns all situations that the machine distinguishes.
pub(super) fn situations() -> impl Iterator<Item = &'static Situation> {
    [ABSENT, PENDING, IN_PROGRESS, RETRYABLE, UNKNOWN, COMPLETED, EXPIRED].into_iter().flatten()
}

const ABSENT: &[Situation] = &[Situation {
    title: "absent",
    make: |policy| {
        let mut set = Set::new(policy, false);
        set.run();
        Some(Scene { record: None, earlier: None, ..set.scene() })
    },
}];

const PENDING: &[Situation] = &[
    Situation { title: "`pending`, to be claimed", make: |policy| Some(Set::new(policy, true).scene()) },
    Situation {
        title: "`pending`, never claimed and past its deadline",
        make: |policy| {
            let mut set = Set::new(policy, true);
            set.wait(3600);
            Some(set.scene())
        },
    },
    Situation {
        title: "`pending`, waiting for its next run",
        make: |policy| {
            let mut set = Set::new(policy, true);
            set.run();
            set.says(5);
            Some(set.scene())
        },
    },
    Situation {
        title: "`pending`, its response owed by an effect",
        make: |policy| {
            let mut set = Set::new(policy, false);
            set.run();
            set.says(7);
            Some(set.scene())
        },
    },
];

const IN_PROGRESS: &[Situation] = &[
    Situation {
        title: "`in_progress`, its lease live",
        make: |policy| {
            let mut set = Set::new(policy, false);
            set.run();
            Some(set.scene())
        },
    },
    Situation {
        title: "`in_progress`, its lease longer than its length (the clock stepped back)",
        make: |policy| {
            let mut set = Set::new(policy, false);
            set.run();
            let micros = set.shelf.now.as_micros();
            set.shelf.now = Timestamp::from_micros(micros - 60_000_000);
            Some(set.scene())
        },
    },
    Situation {
        title: "`in_progress`, its lease lapsed",
        make: |policy| {
            let mut set = Set::new(policy, false);
            set.run();
            set.says(8);
            set.wait(60);
            Some(set.scene())
        },
    },
    Situation {
        title: "`in_progress`, its lease lapsed for the last time (`max_attempts`)",
        make: |policy| {
            let mut set =
                Set::new(Arc::new(((*policy).clone()).with(|policy| policy.max_attempts = 1)), false);
            set.run();
            set.wait(60);
            Some(set.scene())
        },
    },
    Situation {
        title: "`in_progress`, async, its lease lapsed",
        make: |policy| {
            let mut set = Set::new(policy, true);
            set.run();
            set.wait(60);
            Some(set.scene())
        },
    },
];

const RETRYABLE: &[Situation] = &[
    Situation {
        title: "`retryable`",
        make: |policy| {
            let mut set = Set::new(policy, false);
            set.run();
            set.says(5);
            Some(set.scene())
        },
    },
    Situation {
        title: "`retryable`, after 401 or 403",
        make: |policy| {
            let mut set = Set::new(policy, false);
            set.run();
            set.says(3);
            Some(set.scene())
        },
    },
    Situation {
        title: "`retryable`, an in-doubt call",
        make: |policy| {
            let mut set = leave_in_doubt(policy);
            // Long enough for the sweeper to find it due.
            set.wait(60);
            Some(set.scene())
        },
    },
    Situation {
        title: "`retryable`, an in-doubt call whose key may be forgotten",
        make: |policy| {
            let mut set = leave_in_doubt(policy);
            set.wait(KEY_WINDOW.as_secs());
            Some(set.scene())
        },
    },
];

const UNKNOWN: &[Situation] = &[
    Situation {
        title: "`unknown`, its attempt possibly not over yet",
        make: |policy| {
            policy.reconcile.as_ref()?;
            let mut set = Set::new(policy, false);
            set.run();
            set.says(6);
            Some(set.scene())
        },
    },
    Situation {
        title: "`unknown`, to be reconciled",
        make: |policy| {
            policy.reconcile.as_ref()?;
            let mut set = Set::new(policy, false);
            set.run();
            set.says(6);
            set.wait(60);
            Some(set.scene())
        },
    },
    Situation {
        title: "`unknown`, not found by a first lookup",
        make: |policy| {
            policy.reconcile.as_ref()?;
            let mut set = Set::new(policy, false);
            set.run();
            set.says(6);
            set.wait(60);
            let (what, as_of) = (Observation::NotExecuted, set.shelf.now);
            let by = ObservedBy::Reconciler;
            set.happens(&Event::Observed { nonce: Nonce(90), by, what: &what, as_of, jitter: 0.0 });
            set.wait(60);
            Some(set.scene())
        },
    },
    Situation {
        title: "`unknown`, a dead letter",
        make: |policy| {
            if policy.reconcile.is_some() {
                return None;
            }
            let mut set = Set::new(policy, false);
            set.run();
            set.says(6);
            Some(set.scene())
        },
    },
];

const COMPLETED: &[Situation] = &[
    Situation { title: "`completed`, a success", make: |policy| finish(policy, 0) },
    Situation { title: "`completed`, a failure", make: |policy| finish(policy, 1) },
    Situation {
        title: "`completed`, its response not retained",
        make: |policy| {
            let mut set = Set::new(policy, false);
            set.run();
            let record = set.begun.clone()?;
            let answer = AttemptResponse { kept: None, ..answer(200, "") };
            set.happens(&Event::Answered { begun: &record, nonce: Nonce(90), answer: &answer });
            Some(set.scene())
        },
    },
];

const EXPIRED: &[Situation] = &[
    Situation {
        title: "expired, `after_expiry = \"execute\"`",
        make: |policy| {
            let scene = finish(policy, 0)?;
            Some(Scene { now: scene.now.after(Duration::from_secs(24 * 3600)), ..scene })
        },
    },
    Situation {
        title: "expired, `after_expiry = \"refuse\"`, its tombstone kept",
        make: |policy| {
            let policy = ((*policy).clone()).with(|policy| {
                policy.after_expiry = AfterExpiry::Refuse;
                policy.tombstone = Duration::from_secs(3600);
            });
            let scene = finish(Arc::new(policy), 0)?;
            Some(Scene { now: scene.now.after(Duration::from_secs(24 * 3600)), ..scene })
        },
    },
];

/// Returns a record whose attempt made the report at `index`.
fn finish(policy: Arc<Policy>, index: usize) -> Option<Scene> {
    let mut set = Set::new(policy, false);
    set.run();
    set.says(index);
    Some(set.scene())
}

/// Returns a record whose attempt left an in-doubt call and proved that it did nothing else.
fn leave_in_doubt(policy: Arc<Policy>) -> Set {
    let mut set = Set::new(policy, false);
    set.run();
    if let Some(begun) = &mut set.begun {
        begun.note.doubt = Some(1);
    }
    set.says(5);
    set
}

/// Brings a record into a situation by the events that lead there.
struct Set {
    shelf: StoryStore,
    begun: Option<Record>,
    drawn: u64,
}

impl Set {
    fn new(policy: Arc<Policy>, later: bool) -> Set {
        let mut set = Set { shelf: StoryStore::new(), begun: None, drawn: 100 };
        let mut ask = ask("shop", "A", policy, Nonce(1));
        ask.later = later.then(|| Bytes::from_static(b"request"));
        set.happens(&Event::Request { ask: &ask, role: Intent::MayRun });
        set
    }

    fn happens(&mut self, event: &Event<'_>) {
        if let Verdict::Write(change, _) = decide(self.shelf.record(), event, self.shelf.now) {
            self.shelf.commit(&change);
        }
    }

    /// Runs the first request, or lets a worker claim it.
    fn run(&mut self) {
        self.drawn += 1;
        self.happens(&Event::Claim { nonce: Nonce(self.drawn) });
        self.begun = self.shelf.record().cloned();
    }

    fn says(&mut self, index: usize) {
        if let Some(Verdict::Write(change, _)) = attempt_says(&self.scene(), true, index) {
            self.shelf.commit(&change);
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.shelf.now = self.shelf.now.after(Duration::from_secs(seconds));
    }

    fn scene(&self) -> Scene {
        let record = self.shelf.record().cloned();
        // A record that was never run has neither attempt.
        let earlier = self.begun.clone().map(|begun| Record { owner: Nonce(50), ..begun });
        Scene { earlier, begun: self.begun.clone(), record, now: self.shelf.now }
    }
}
