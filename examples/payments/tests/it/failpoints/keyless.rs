//! Payments through a processor that ignores our key: a second call is a second charge, so one charge proves one call.
//!
//! With `--verify-after`, a node looks up a charge whose response was lost, and records what it finds. With
//! `--charge-once` it cannot ask: the effect becomes `unknown`, waits for an operator, and is never called again.

use futures_util::future::join;
use tokio::sync::watch;

use super::matrix::{Action, Case};
use super::{LEASE, all_on_postgres, all_on_sqlite};
use crate::armed_node::ArmedNode;
use crate::clients::{CompletedRequest, TOKEN, plan_requests, send_until_done};
use crate::fixture::{DatabaseAndProcessor, Node, TestDatabase, keyless_processor, wait_for};
use crate::harness::Program;

#[tokio::test(flavor = "multi_thread")]
async fn keyless_charges_are_called_at_most_once_on_sqlite() {
    all_on_sqlite(CASES_AT_ONCE, cases(), run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keyless_charges_are_called_at_most_once_on_postgres() {
    all_on_postgres(CASES_AT_ONCE, cases(), run).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn keyless_charges_are_called_at_most_once_on_mariadb() {
    super::all_on_mariadb(CASES_AT_ONCE, cases(), run).await;
}

/// One hit of a failpoint, and the node's rule for charges whose response was lost.
#[derive(Clone, Copy, Debug)]
struct Keyless {
    case: Case,
    care: Care,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Care {
    Once,
    Verified,
}

/// State in which the effect that was hit ends, with [`Care::Once`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// Its result is recorded.
    Done,
    /// Its result is unknown, and an operator must look.
    Unknown,
    /// One of the two: the dozing worker races with the worker that finds its claim lapsed.
    Either,
}

fn cases() -> Vec<Keyless> {
    let cares = [Care::Verified, Care::Once];
    let all = cares.into_iter().flat_map(|care| {
        HITS.into_iter().map(move |(point, action, _)| Keyless { case: Case::at(point, action), care })
    });
    all.collect()
}

/// Runs one case and returns the number of payments.
async fn run(Keyless { case, care }: Keyless, database: TestDatabase) -> usize {
    let world = DatabaseAndProcessor { database, provider: keyless_processor("") };
    let serve = || {
        let mut command = world.serve(LEASE, "100ms", "100ms");
        match care {
            Care::Once => command.arg("--charge-once"),
            Care::Verified => command.args(["--verify-after", SETTLE]),
        };
        command
    };
    let mut armed = ArmedNode::from_command(serve(), &case.failpoint(0, 0)).await;
    let (turn_to, node) = watch::channel(armed.node.0.address);
    let breaking = async {
        if case.action != Action::Kill {
            armed.wait_for_log("a failpoint is hit").await;
            return None;
        }
        armed.wait_until_killed().await;
        world.lapse().await;
        let next = Node(Program::from_command(serve()));
        turn_to.send_replace(next.0.address);
        Some(next)
    };
    // Only one payment: of several, the killed node might hold more than the one that hits the failpoint.
    let (mut completed, next) = join(send_until_done(plan_requests(1, 0), &node), breaking).await;
    let open = match care {
        Care::Verified => "select name from ibid_effects where state <> 'done'",
        Care::Once => "select name from ibid_effects where state not in ('done', 'unknown')",
    };
    world.wait_for_rows(open, &[]).await;
    if (case.point, case.action) == ("call.after", Action::Doze) {
        let is_over = async || {
            let done = world.texts("select name from ibid_effects where state = 'done' and tries = 1").await;
            (!done.is_empty()
                || armed.has_logged("call succeeded, but the claim was lost; result not recorded"))
            .then_some(())
        };
        wait_for("the dozing worker is in time or too late", is_over).await;
    }
    // Any worker that would still claim the effect has done so by the time that a later payment is settled.
    let later = send_until_done(vec![plan_requests(2, 0).remove(1)], &node).await;
    let next = next.unwrap_or(armed.node);
    assert_eq!(next.wait_until_settled(TOKEN, &later[0].id()).await["status"], "succeeded");
    completed.extend(later);

    let lost =
        world.texts("select name from ibid_effects where state = 'unknown' and due_at is null").await.len();
    let pending = world.texts("select id from payment where status = 'pending' and charge_id is null").await;
    let paid = world.texts("select id from payment where status = 'succeeded'").await;
    assert_eq!(pending.len(), lost, "a payment is pending exactly if its effect is unknown");
    assert_eq!(paid.len() + lost, completed.len());
    let ends = if care == Care::Verified { Ends::Done } else { ends(case) };
    assert!(
        match ends {
            Ends::Done => lost == 0,
            Ends::Unknown => lost == 1,
            Ends::Either => lost <= 1,
        },
        "{lost} effects are unknown, and the case ends {ends:?}"
    );
    assert_called_once(&world, case, completed.iter().map(CompletedRequest::id).collect(), &pending).await;
    completed.len()
}

/// Asserts that every payment made one call and one charge. A payment that was hit before its call and is still pending
/// made none.
async fn assert_called_once(
    world: &DatabaseAndProcessor,
    case: Case,
    mut ids: Vec<String>,
    pending: &[String],
) {
    if case.point == "claim.after" {
        ids.retain(|id| !pending.contains(id));
    }
    ids.sort();
    assert_eq!(world.charged_references().await, ids, "charges and responses");
    let (_, list) = world.provider.get("/charges").await;
    assert_eq!(list["requests"], ids.len(), "one call per payment");
}

fn ends(case: Case) -> Ends {
    let hit = HITS.into_iter().find(|(point, action, _)| (*point, *action) == (case.point, case.action));
    hit.expect("a case of `HITS`").2
}

/// Failpoints around the call of an effect and its end, with the result under [`Care::Once`].
const HITS: [(&str, Action, Ends); 8] = [
    // No call was made. The processor knows that, but the node that finds the lapsed claim does not.
    ("claim.after", Action::Kill, Ends::Unknown),
    ("call.after", Action::Kill, Ends::Unknown),
    ("call.after", Action::Lost, Ends::Unknown),
    ("call.after", Action::Doze, Ends::Either),
    ("record.before", Action::Kill, Ends::Unknown),
    ("record.before", Action::Doze, Ends::Either),
    ("done.after", Action::Kill, Ends::Done),
    ("done.after", Action::Lost, Ends::Done),
];

/// Time after which the node asks the processor. It may be short: this processor charges as soon as it has read a call.
const SETTLE: &str = "300ms";

/// Half of the cases run in parallel, because a case mostly waits for its lease.
const CASES_AT_ONCE: usize = 8;
