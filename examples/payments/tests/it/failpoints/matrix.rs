//! Which places there are, what can happen at each, and how a test sees that it did.

use std::process::Command;

use super::PAST_THE_LEASE;

/// What happens at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// SIGKILL.
    Kill,
    /// It fails.
    Error,
    /// SIGSTOP until another node has done its work: no thread of it renews anything.
    Stop,
    /// This task alone waits past the lease, in a node that goes on around it.
    Doze,
    /// It has happened, and the reply does not come.
    Lost,
}

/// One hit of one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) place: &'static str,
    pub(super) action: Action,
    /// Of the phases of a ride, not the first.
    later: bool,
}

/// How the database shows that somebody took over.
pub(super) enum Proof {
    /// There was nothing to take over.
    None,
    /// A lease lapsed.
    Lapse,
    /// An effect was carried out by two workers.
    SecondTry,
}

/// All that exist, of these actions.
pub(super) fn cases(actions: &[Action]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (place, whys) in PLACES {
        for (action, why_not) in ACTIONS.into_iter().zip(whys) {
            if why_not == RUNS && actions.contains(&action) {
                cases.push(Case::at(place, action));
                if place.starts_with("phase.") {
                    cases.push(Case { place, action, later: true });
                }
            }
        }
    }
    cases
}

/// Every place that a payment or ride comes by.
pub(crate) fn places() -> Vec<&'static str> {
    PLACES.iter().map(|(place, _)| *place).collect()
}

impl Case {
    pub(super) fn at(place: &'static str, action: Action) -> Case {
        Case { place, action, later: false }
    }

    /// As in `IBID_FAILPOINTS`, for so many payments that are let pass first, and so many rides.
    pub(super) fn failpoint(&self, payments: usize, rides: usize) -> String {
        let action = match self.action {
            Action::Kill => "kill".to_owned(),
            Action::Error => "error".to_owned(),
            Action::Stop => "stop".to_owned(),
            Action::Lost => "lost".to_owned(),
            Action::Doze => format!("pause:{}", PAST_THE_LEASE.as_millis()),
        };
        // Each ride has two phases in a transaction, so the hit after as many as there are rides is of a second one,
        // or of the first of a ride that was overtaken.
        match payments * self.hits_of_a_payment() + if self.later { rides } else { 0 } {
            0 => format!("{}=1*return({action})", self.place),
            skip => format!("{}={skip}*off->1*return({action})", self.place),
        }
    }

    /// How many rides are to be made, beside payments.
    pub(super) fn rides(&self) -> usize {
        if self.hits_of_a_payment() == 0 { RIDES } else { 0 }
    }

    /// How often a payment comes by.
    pub(super) fn hits_of_a_payment(&self) -> usize {
        let of_rides = ["phase.", "outside.", "tell."];
        usize::from(!of_rides.iter().any(|phase| self.place.starts_with(phase)))
    }

    /// Whether a transaction is open there.
    pub(super) fn holds_the_file(&self) -> bool {
        matches!(
            self.place,
            "phase.before" | "enqueue.after" | "finish.before" | "claim.before" | "record.before"
        )
    }

    /// What another node's work leaves behind, if this one stops here.
    pub(super) fn proof(&self) -> Proof {
        match self.place {
            // Nothing is reserved or claimed yet, or everything is done.
            "begin.before" | "finish.after" | "claim.before" | "done.after" => Proof::None,
            "claim.after" | "call.after" | "record.before" => Proof::SecondTry,
            _ => Proof::Lapse,
        }
    }

    /// What a zombie says when it finds that another has done its work.
    pub(super) fn last_words(&self) -> Option<&'static str> {
        match self.place {
            "call.after" => Some("call succeeded, but the claim was lost; result not recorded"),
            _ => None,
        }
    }
}

const ACTIONS: [Action; 5] = [Action::Kill, Action::Error, Action::Stop, Action::Doze, Action::Lost];

/// For each place and action why it does not exist there.
const PLACES: [(&str, [&str; 5]); 15] = [
    // kill, error, stop, doze, lost
    ("begin.before", [RUNS, RUNS, RUNS, RUNS, NOT_YET]),
    ("begin.after", [RUNS, HAS_HAPPENED, RUNS, RUNS, RUNS]),
    ("phase.before", [RUNS, RUNS, RUNS, RUNS, NOT_YET]),
    ("phase.after", [RUNS, HAS_HAPPENED, RUNS, RUNS, RUNS]),
    ("outside.after", [RUNS, THE_PROCESSORS, RUNS, RUNS, THE_PROCESSORS]),
    ("tell.before", [RUNS, RUNS, RUNS, RUNS, NOT_YET]),
    ("tell.after", [RUNS, HAS_HAPPENED, RUNS, RUNS, RUNS]),
    ("enqueue.after", [RUNS, RUNS, RUNS, RUNS, NOT_YET]),
    ("finish.before", [RUNS, RUNS, RUNS, RUNS, NOT_YET]),
    ("finish.after", [RUNS, HAS_HAPPENED, RUNS, RUNS, RUNS]),
    ("claim.before", [RUNS, RUNS, RUNS, RUNS, NOT_YET]),
    ("claim.after", [RUNS, HAS_HAPPENED, RUNS, RUNS, RUNS]),
    ("call.after", [RUNS, HAS_HAPPENED, RUNS, RUNS, RUNS]),
    ("record.before", [RUNS, RUNS, RUNS, RUNS, NOT_YET]),
    ("done.after", [RUNS, HAS_HAPPENED, RUNS, RUNS, RUNS]),
];

/// Places that a payment or ride never comes by, and which tests have them.
const ELSEWHERE: [(&str, &str); 4] = [
    ("hear.kept", "`hooked`"),
    ("reserve.after", "`transaction::killed` of the library"),
    ("deliver.before", "`gateway_async` of the gateway"),
    ("deliver.after", "`gateway_async` of the gateway"),
];

/// What a program says to a place that there is none of.
#[test]
fn every_place_that_the_library_has_is_tested() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("sqlite:{}", folder.path().join("payments.db").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
    command.args(["--store", &store, "--provider", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"]);
    let refused = command.env("IBID_FAILPOINTS", "nowhere=off").output().expect("the program starts");
    let said = String::from_utf8_lossy(&refused.stderr);
    let listed = said.lines().find_map(|line| line.split_once("unknown failpoint `nowhere`; known: "));
    let (_, listed) = listed.unwrap_or_else(|| panic!("no list in {said:?}"));
    let mut listed: Vec<&str> = listed.split_whitespace().collect();
    let mut tested = places();
    tested.extend(ELSEWHERE.iter().map(|(place, _)| *place));
    listed.sort();
    tested.sort();
    assert_eq!(tested, listed);
}

const RUNS: &str = "";

const NOT_YET: &str = "nothing is committed or sent yet, so there is no reply to lose";

const HAS_HAPPENED: &str = "it has happened: an error after it is a lost reply";

const THE_PROCESSORS: &str = "the processor's faults let a charge fail or lose its reply; `rides` has them";

/// So that one goes on while something happens to the other.
const RIDES: usize = 2;
