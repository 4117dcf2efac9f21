//! The same where the processor ignores our key: whoever asks it twice is charged twice, so one charge proves one call.
//!
//! A charge whose answer was lost is then asked about (`--verify-after`) and ends as it went; or, where nobody can be asked
//! (`--charge-once`), it is a person's and is never asked for again.

use futures_util::future::join;
use tokio::sync::watch;

use super::matrix::{Action, Case};
use super::{LEASE, all_on_postgres, all_on_sqlite};
use crate::armed::Armed;
use crate::clients::{TOKEN, Told, carried_out, wishes};
use crate::harness::Program;
use crate::world::{Node, Place, World, eventually, keyless_processor};

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_without_keys_is_asked_for_each_charge_once_on_sqlite() {
    all_on_sqlite(CASES_AT_ONCE, cases(), run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_without_keys_is_asked_for_each_charge_once_on_postgres() {
    all_on_postgres(CASES_AT_ONCE, cases(), run).await;
}

/// One hit, and what the node does about charges whose answer was lost.
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

/// How the effect that was hit ends, where nobody is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// Its result is recorded.
    Done,
    /// Nobody here knows, and a person must look.
    Unknown,
    /// The one that sleeps, or the one that finds its claim lapsed: whoever is first.
    Either,
}

fn cases() -> Vec<Keyless> {
    let cares = [Care::Verified, Care::Once];
    let all = cares.into_iter().flat_map(|care| {
        HITS.into_iter().map(move |(place, action, _)| Keyless { case: Case::at(place, action), care })
    });
    all.collect()
}

/// One case. How many payments were made.
async fn run(Keyless { case, care }: Keyless, place: Place) -> usize {
    let world = World { place, provider: keyless_processor("") };
    let serve = || {
        let mut command = world.serve(LEASE, "100ms", "100ms");
        match care {
            Care::Once => command.arg("--charge-once"),
            Care::Verified => command.args(["--verify-after", SETTLE]),
        };
        command
    };
    let mut armed = Armed::of(serve(), &case.failpoint(0, 0)).await;
    let (turn_to, node) = watch::channel(armed.node.0.address);
    let breaking = async {
        if case.action != Action::Kill {
            armed.says("a failpoint is hit").await;
            return None;
        }
        armed.dies().await;
        world.lapse().await;
        let next = Node(Program::of(serve()));
        turn_to.send_replace(next.0.address);
        Some(next)
    };
    // One payment: of several the node that is killed may hold more than the one that is hit.
    let (mut told, next) = join(carried_out(wishes(1, 0), &node), breaking).await;
    let open = match care {
        Care::Verified => "select name from ibid_effect where state <> 3",
        Care::Once => "select name from ibid_effect where state not in (3, 4)",
    };
    world.comes_to(open, &[]).await;
    if (case.place, case.action) == ("call.after", Action::Doze) {
        let woken = async || {
            let done = world.texts("select name from ibid_effect where state = 3 and tries = 1").await;
            (!done.is_empty() || armed.said("call succeeded, but the claim was lost; result not recorded"))
                .then_some(())
        };
        eventually("the one that slept is in time or too late", woken).await;
    }
    // Whoever would still come for it has come when a later payment is settled.
    let later = carried_out(vec![wishes(2, 0).remove(1)], &node).await;
    let next = next.unwrap_or(armed.node);
    assert_eq!(next.settled(TOKEN, &later[0].id()).await["status"], "succeeded");
    told.extend(later);

    let lost = world.texts("select name from ibid_effect where state = 4 and due_at is null").await.len();
    let pending = world.texts("select id from payment where status = 'pending' and charge_id is null").await;
    let paid = world.texts("select id from payment where status = 'succeeded'").await;
    assert_eq!(pending.len(), lost, "a payment waits exactly if its charge is a person's");
    assert_eq!(paid.len() + lost, told.len());
    let ends = if care == Care::Verified { Ends::Done } else { ends(case) };
    assert!(
        match ends {
            Ends::Done => lost == 0,
            Ends::Unknown => lost == 1,
            Ends::Either => lost <= 1,
        },
        "{lost} are lost, and it {ends:?}"
    );
    is_asked_once(&world, case, told.iter().map(Told::id).collect(), &pending).await;
    told.len()
}

/// Every payment was asked for once and charged once; the one that was hit before its call, and is a person's, not at all.
async fn is_asked_once(world: &World, case: Case, mut ids: Vec<String>, pending: &[String]) {
    if case.place == "claim.after" {
        ids.retain(|id| !pending.contains(id));
    }
    ids.sort();
    assert_eq!(world.charged().await, ids, "charges and answers");
    let (_, list) = world.provider.get("/charges").await;
    assert_eq!(list["requests"], ids.len(), "nothing was asked for twice");
}

fn ends(case: Case) -> Ends {
    let hit = HITS.into_iter().find(|(place, action, _)| (*place, *action) == (case.place, case.action));
    hit.expect("it is one of them").2
}

/// Around the call of an effect and its end; and how it ends where nobody is asked.
const HITS: [(&str, Action, Ends); 8] = [
    // Nothing was called, which the processor can tell and this node can't.
    ("claim.after", Action::Kill, Ends::Unknown),
    ("call.after", Action::Kill, Ends::Unknown),
    ("call.after", Action::Lost, Ends::Unknown),
    ("call.after", Action::Doze, Ends::Either),
    ("record.before", Action::Kill, Ends::Unknown),
    ("record.before", Action::Doze, Ends::Either),
    ("done.after", Action::Kill, Ends::Done),
    ("done.after", Action::Lost, Ends::Done),
];

/// A call that this processor has read is made at once.
const SETTLE: &str = "300ms";

/// Half of them: a case has little to do but to wait for its lease.
const CASES_AT_ONCE: usize = 8;
