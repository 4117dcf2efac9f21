//! Rides through a processor that ignores our key. A ride calls the processor between two phases; a node is killed before
//! and after every write around that call.

use futures_util::future::join;

use super::{LEASE, all_on_postgres, all_on_sqlite};
use crate::armed_node::ArmedNode;
use crate::clients::TOKEN;
use crate::fixture::{DatabaseAndProcessor, Node, TestDatabase, json, keyless_processor, ride, wait_for};
use crate::harness::Program;

#[tokio::test(flavor = "multi_thread")]
async fn keyless_rides_are_charged_at_most_once_on_sqlite() {
    all_on_sqlite(CASES_AT_ONCE, HITS.to_vec(), run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keyless_rides_are_charged_at_most_once_on_postgres() {
    all_on_postgres(CASES_AT_ONCE, HITS.to_vec(), run).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn keyless_rides_are_charged_at_most_once_on_mariadb() {
    super::all_on_mariadb(CASES_AT_ONCE, HITS.to_vec(), run).await;
}

/// A failpoint at which a node is killed, and the expected result.
#[derive(Clone, Copy, Debug)]
struct Hit {
    flags: &'static [&'static str],
    failpoint: &'static str,
    ends: Ends,
    /// Number of calls to the processor for this ride.
    calls: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// The ride ends with its response.
    Done,
    /// The result is unknown, and an operator must look.
    Unknown,
}

/// Runs one case and returns the number of its rides.
async fn run(hit: Hit, database: TestDatabase) -> usize {
    let world = DatabaseAndProcessor { database, provider: keyless_processor("") };
    let serve = || {
        let mut command = world.serve(LEASE, "100ms", "100ms");
        command.args(hit.flags);
        command
    };
    let mut armed = ArmedNode::from_command(serve(), hit.failpoint).await;
    let (address, body) = (armed.node.0.address, ride(900));
    let asking = crate::fixture::try_post_to(address, "/rides", TOKEN, "k", &body);
    let (answer, ()) = join(asking, armed.wait_until_killed()).await;
    assert!(answer.is_none(), "the node died during the request");
    world.lapse().await;
    let node = Node(Program::from_command(serve()));
    let ended = wait_for("the ride ends", async || {
        let answer = node.try_post("/rides", TOKEN, "k", &body).await?;
        let unknown = answer.status == 409 && answer.text().contains("outcome-unknown");
        (unknown || !matches!(answer.status, 409 | 503)).then_some(answer)
    })
    .await;
    // A sweeper that would still resume the ride has done so by the time that a later ride is done.
    let later = node.post_until_done("/rides", TOKEN, "later", &body).await;
    assert_eq!(later.status, 201, "{}", later.text());

    match hit.ends {
        Ends::Done => {
            assert_eq!(ended.status, 201, "{}", ended.text());
            let ids = world.texts("select id from ride where status = 'succeeded' order by id").await;
            let mut answered = [&ended, &later].map(|answer| json(answer)["rideId"].clone());
            answered.sort_by_key(ToString::to_string);
            assert_eq!(ids, answered);
            assert_eq!(world.charged_references().await, ids);
        }
        Ends::Unknown => {
            assert_eq!(ended.status, 409, "{}", ended.text());
            assert_eq!(
                world.texts("select status from ride order by status").await,
                ["pending", "succeeded"]
            );
            // 5 is `unknown`.
            assert_eq!(world.texts("select r.key from ibid_record r where r.state = 5").await, ["k"]);
        }
    }
    let (_, list) = world.provider.get("/charges").await;
    assert_eq!((&list["requests"], &list["count"]), (&(hit.calls + 1).into(), &(hit.calls + 1).into()));
    2
}

const ONCE: &[&str] = &["--charge-once"];

/// The time may be short: this processor charges as soon as it has read a call.
const VERIFIED: &[&str] = &["--verify-after", "300ms"];

const fn hit(flags: &'static [&'static str], failpoint: &'static str, ends: Ends, calls: u64) -> Hit {
    Hit { flags, failpoint, ends, calls }
}

const HITS: [Hit; 8] = [
    // The node writes a marker before the call and the result after it. A call is in doubt only between these two writes.
    hit(ONCE, "tell.before=1*return(kill)", Ends::Done, 1),
    hit(ONCE, "tell.after=1*return(kill)", Ends::Unknown, 0),
    hit(ONCE, "outside.after=1*return(kill)", Ends::Unknown, 1),
    hit(ONCE, "tell.before=1*off->1*return(kill)", Ends::Unknown, 1),
    hit(ONCE, "tell.after=1*off->1*return(kill)", Ends::Done, 1),
    // The attempt that resumes the ride asks first, and the processor answers yes or no.
    hit(VERIFIED, "phase.after=1*return(kill)", Ends::Done, 1),
    hit(VERIFIED, "outside.after=1*return(kill)", Ends::Done, 1),
    hit(VERIFIED, "tell.before=1*return(kill)", Ends::Done, 1),
];

/// All cases run in parallel, because a case mostly waits for its lease.
const CASES_AT_ONCE: usize = 8;
