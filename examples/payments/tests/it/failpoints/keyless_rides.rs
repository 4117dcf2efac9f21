//! The same for rides, which call the processor between two phases. A node is killed before and after everything that it
//! writes around that call.

use futures_util::future::join;

use super::{LEASE, all_on_postgres, all_on_sqlite};
use crate::armed::Armed;
use crate::clients::TOKEN;
use crate::harness::Program;
use crate::world::{Node, Place, World, eventually, json, keyless_processor, ride};

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_without_keys_is_asked_for_each_ride_once_on_sqlite() {
    all_on_sqlite(CASES_AT_ONCE, HITS.to_vec(), run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_without_keys_is_asked_for_each_ride_once_on_postgres() {
    all_on_postgres(CASES_AT_ONCE, HITS.to_vec(), run).await;
}

/// Where a node is killed.
#[derive(Clone, Copy, Debug)]
struct Hit {
    flags: &'static [&'static str],
    failpoint: &'static str,
    ends: Ends,
    /// How often the processor has been asked for this ride.
    calls: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// With its answer.
    Done,
    /// Nobody here knows, and a person must look.
    Unknown,
}

/// One case. How many rides were asked for.
async fn run(hit: Hit, place: Place) -> usize {
    let world = World { place, provider: keyless_processor("") };
    let serve = || {
        let mut command = world.serve(LEASE, "100ms", "100ms");
        command.args(hit.flags);
        command
    };
    let mut armed = Armed::of(serve(), hit.failpoint).await;
    let (address, body) = (armed.node.0.address, ride(900));
    let asking = crate::world::try_post_to(address, "/rides", TOKEN, "k", &body);
    let (answer, ()) = join(asking, armed.dies()).await;
    assert!(answer.is_none(), "it died with the request in its hands");
    world.lapse().await;
    let node = Node(Program::of(serve()));
    let ended = eventually("the ride ends", async || {
        let answer = node.try_post("/rides", TOKEN, "k", &body).await?;
        let unknown = answer.status == 409 && answer.text().contains("outcome-unknown");
        (unknown || !matches!(answer.status, 409 | 503)).then_some(answer)
    })
    .await;
    // Whoever would still come for it has come when a later ride is done.
    let later = node.post_until_done("/rides", TOKEN, "later", &body).await;
    assert_eq!(later.status, 201, "{}", later.text());

    match hit.ends {
        Ends::Done => {
            assert_eq!(ended.status, 201, "{}", ended.text());
            let ids = world.texts("select id from ride where status = 'succeeded' order by id").await;
            let mut told = [&ended, &later].map(|answer| json(answer)["rideId"].clone());
            told.sort_by_key(ToString::to_string);
            assert_eq!(ids, told);
            assert_eq!(world.charged().await, ids);
        }
        Ends::Unknown => {
            assert_eq!(ended.status, 409, "{}", ended.text());
            assert_eq!(
                world.texts("select status from ride order by status").await,
                ["pending", "succeeded"]
            );
            // 5 is `unknown`.
            assert_eq!(world.texts("select key from ibid_record where state = 5").await, ["k"]);
        }
    }
    let (_, list) = world.provider.get("/charges").await;
    assert_eq!((&list["requests"], &list["count"]), (&(hit.calls + 1).into(), &(hit.calls + 1).into()));
    2
}

const ONCE: &[&str] = &["--charge-once"];

/// A call that this processor has read is made at once.
const VERIFIED: &[&str] = &["--verify-after", "300ms"];

const fn hit(flags: &'static [&'static str], failpoint: &'static str, ends: Ends, calls: u64) -> Hit {
    Hit { flags, failpoint, ends, calls }
}

const HITS: [Hit; 8] = [
    // That it will call is written first; only what was written so, and never written as done, is in doubt.
    hit(ONCE, "tell.before=1*return(kill)", Ends::Done, 1),
    hit(ONCE, "tell.after=1*return(kill)", Ends::Unknown, 0),
    hit(ONCE, "outside.after=1*return(kill)", Ends::Unknown, 1),
    hit(ONCE, "tell.before=1*off->1*return(kill)", Ends::Unknown, 1),
    hit(ONCE, "tell.after=1*off->1*return(kill)", Ends::Done, 1),
    // Who goes on asks first, and is told yes or no.
    hit(VERIFIED, "phase.after=1*return(kill)", Ends::Done, 1),
    hit(VERIFIED, "outside.after=1*return(kill)", Ends::Done, 1),
    hit(VERIFIED, "tell.before=1*return(kill)", Ends::Done, 1),
];

/// All of them: a case has little to do but to wait for its lease.
const CASES_AT_ONCE: usize = 8;
