//! The matrix of failpoints and actions, and the traces that each case leaves.

use std::process::Command;

use super::PAST_THE_LEASE;

/// An action at a failpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The process kills itself with SIGKILL.
    Kill,
    /// The operation fails with an error.
    Error,
    /// The process stops itself with SIGSTOP until another node has done its work: none of its threads renews a lease.
    Stop,
    /// Only this task waits past the lease; the rest of the node keeps running.
    Doze,
    /// The operation happens, but its reply is lost.
    Lost,
}

/// One hit of one failpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    /// Name of the failpoint.
    pub(super) point: &'static str,
    pub(super) action: Action,
    /// True to hit the second phase of a ride instead of the first.
    later: bool,
}

/// Traces in the database which prove that another node took over.
pub(super) enum Proof {
    /// There was nothing to take over.
    None,
    /// A lease lapsed.
    Lapse,
    /// Two workers claimed the same effect.
    SecondTry,
}

/// Returns all cases with one of these actions.
pub(super) fn cases(actions: &[Action]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (point, reasons) in FAILPOINTS {
        for (action, reason) in ACTIONS.into_iter().zip(reasons) {
            if reason == RUNS && actions.contains(&action) {
                cases.push(Case::at(point, action));
                if point.starts_with("phase.") {
                    cases.push(Case { point, action, later: true });
                }
            }
        }
    }
    cases
}

/// Returns all failpoints that a payment or ride can hit.
pub(crate) fn failpoint_names() -> Vec<&'static str> {
    FAILPOINTS.iter().map(|(point, _)| *point).collect()
}

impl Case {
    pub(super) fn at(point: &'static str, action: Action) -> Case {
        Case { point, action, later: false }
    }

    /// Returns the failpoint in the syntax of `IBID_FAILPOINTS`, for a test with `rides` rides. The first `payments`
    /// payments pass it unharmed.
    pub(super) fn failpoint(&self, payments: usize, rides: usize) -> String {
        let action = match self.action {
            Action::Kill => "kill".to_owned(),
            Action::Error => "error".to_owned(),
            Action::Stop => "stop".to_owned(),
            Action::Lost => "lost".to_owned(),
            Action::Doze => format!("pause:{}", PAST_THE_LEASE.as_millis()),
        };
        // Each ride has two database phases. So the hit after as many passes as there are rides is a second phase, or the
        // first phase of a ride that another one overtook.
        match payments * self.hits_of_a_payment() + if self.later { rides } else { 0 } {
            0 => format!("{}=1*return({action})", self.point),
            skip => format!("{}={skip}*off->1*return({action})", self.point),
        }
    }

    /// Returns the number of rides that the case needs in addition to payments.
    pub(super) fn rides(&self) -> usize {
        if self.hits_of_a_payment() == 0 { RIDES } else { 0 }
    }

    /// Returns how often one payment hits the failpoint.
    pub(super) fn hits_of_a_payment(&self) -> usize {
        let rides_only = ["phase.", "outside.", "tell."];
        usize::from(!rides_only.iter().any(|prefix| self.point.starts_with(prefix)))
    }

    /// Returns whether a transaction is open at the failpoint, which locks a whole SQLite file.
    pub(super) fn is_in_transaction(&self) -> bool {
        matches!(
            self.point,
            "phase.before" | "enqueue.after" | "finish.before" | "claim.before" | "record.before"
        )
    }

    /// Returns the trace that another node's work leaves if this node stops here.
    pub(super) fn proof(&self) -> Proof {
        match self.point {
            // Before: nothing is reserved or claimed yet. After: everything is done.
            "begin.before" | "finish.after" | "claim.before" | "done.after" => Proof::None,
            "claim.after" | "call.after" | "record.before" => Proof::SecondTry,
            _ => Proof::Lapse,
        }
    }

    /// Returns the line that a zombie logs when it finds that another node has done its work.
    pub(super) fn zombie_log(&self) -> Option<&'static str> {
        match self.point {
            "call.after" => Some("call succeeded, but the claim was lost; result not recorded"),
            _ => None,
        }
    }
}

const ACTIONS: [Action; 5] = [Action::Kill, Action::Error, Action::Stop, Action::Doze, Action::Lost];

/// For each failpoint and action, the reason why the pair is not a case, or [`RUNS`].
const FAILPOINTS: [(&str, [&str; 5]); 15] = [
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

/// Failpoints that a payment or ride never hits, and the tests that cover them.
const ELSEWHERE: [(&str, &str); 12] = [
    ("hear.kept", "`hooked`"),
    ("reserve.after", "`transaction::killed` of the library"),
    ("deliver.before", "`gateway_async` of the gateway"),
    ("deliver.after", "`gateway_async` of the gateway"),
    ("copy.joined", "`copy` of the gateway"),
    ("copy.closed", "`copy` of the gateway"),
    ("copy.retired", "`copy` of the gateway"),
    ("copy.batch", "`copy` of the gateway"),
    ("copy.copied", "`copy` of the gateway"),
    ("copy.compared", "`copy` of the gateway"),
    ("copy.opened", "`copy` of the gateway"),
    ("copy.cancelled", "`copy` of the gateway"),
];

/// Takes the list of failpoints from the error message for an unknown one.
#[test]
fn every_failpoint_of_the_library_is_tested() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("sqlite:{}", folder.path().join("payments.db").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
    command.args(["--store", &store, "--provider", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"]);
    let output = command.env("IBID_FAILPOINTS", "nowhere=off").output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let list = stderr.lines().find_map(|line| line.split_once("unknown failpoint `nowhere`; known: "));
    let (_, list) = list.unwrap_or_else(|| panic!("no list in {stderr:?}"));
    let mut known: Vec<&str> = list.split_whitespace().collect();
    let mut tested = failpoint_names();
    tested.extend(ELSEWHERE.iter().map(|(point, _)| *point));
    known.sort();
    tested.sort();
    assert_eq!(tested, known);
}

const RUNS: &str = "";

const NOT_YET: &str = "nothing is committed or sent yet, so there is no reply to lose";

const HAS_HAPPENED: &str = "the operation has happened: an error after it is a lost reply";

const THE_PROCESSORS: &str =
    "the processor's faults make a charge fail or lose its reply; `rides` tests them";

/// Rides per case: one of them continues while the other is hit.
const RIDES: usize = 2;
