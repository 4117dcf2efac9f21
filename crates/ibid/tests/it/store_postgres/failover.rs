//! The server is killed under load and starts again, or its standby takes over: a synchronous standby has every commit,
//! an asynchronous one does not.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use ibid::attempt::Attempt;
use ibid::engine::UnavailableError;
use ibid::outcome::{Begin, Outcome};
use ibid::{Ibid, Settings};
use ibid_core::fingerprint::RequestView;
use ibid_core::key::Key;
use ibid_core::policy::Policy;
use ibid_core::response::Response;
use ibid_core::scope::{Identity, Operation, Tenant};
use ibid_testkit::postgres::PostgresPair;
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};

use super::*;

struct Body(String);

impl RequestView for Body {
    fn method(&self) -> &str {
        "POST"
    }
    fn path(&self) -> &str {
        "/pay"
    }
    fn query(&self) -> Option<&str> {
        None
    }
    fn header_lines(&self, _: &str, _: &mut dyn FnMut(&[u8])) {}
    fn body(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

async fn ibid_at(url: &str) -> Ibid {
    let store = PostgresStore::open(url, options()).await.expect("the store opens");
    Ibid::start(Arc::new(store), Settings::default()).await.expect("it starts")
}

async fn begin_key(ibid: &Ibid, key: &str) -> Result<Begin, UnavailableError> {
    let identity = Identity {
        tenant: Tenant::only(),
        operation: Operation { method: "POST".into(), path: "/pay".into() },
        key: Key::stored(key).expect("a good key"),
    };
    ibid.begin(ibid.ask(identity, Arc::new(Policy::default()), Arc::new(Body(key.to_owned())))).await
}

async fn run(ibid: &Ibid, key: &str) -> Attempt {
    match begin_key(ibid, key).await {
        Ok(Begin::Run(attempt)) => *attempt,
        other => panic!("`{key}` is not to be run: {other:?}"),
    }
}

/// The response for each key.
fn answer(key: &str) -> Response {
    let body = Bytes::from(format!("paid for {key}"));
    Response { status: 201, headers: vec![], body, trailers: vec![] }
}

async fn assert_replays(ibid: &Ibid, key: &str) {
    match begin_key(ibid, key).await {
        Ok(Begin::Skip(Outcome::Completed(kept))) => {
            assert_eq!(*kept.response, answer(key), "the answer of `{key}`")
        }
        other => panic!("`{key}` was acknowledged, and now it is {other:?}"),
    }
}

/// Callers that pay under one key after another, whatever happens to the server.
struct Load {
    ibid: Ibid,
    /// Keys whose response is durable, as the store reports.
    acknowledged: Mutex<Vec<String>>,
    count: watch::Sender<usize>,
    over: AtomicBool,
}

impl Load {
    async fn pay(self: Arc<Load>, caller: usize) {
        for n in 0.. {
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            let key = format!("{caller}-{n}");
            let Ok(begun) = begin_key(&self.ibid, &key).await else {
                // The server is down. An immediate retry would only add load.
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let Begin::Run(attempt) = begun else { panic!("a fresh key `{key}` is {begun:?}") };
            match attempt.finish(answer(&key)).await {
                Outcome::Completed(_) => {
                    self.acknowledged.lock().expect("no one panics with it").push(key);
                    self.count.send_modify(|count| *count += 1);
                }
                Outcome::NotDurable => {}
                other => panic!("`{key}` was finished by this caller only, and is {other:?}"),
            }
        }
    }

    /// Waits until `by` more keys were acknowledged.
    async fn more(&self, by: usize) {
        let mut count = self.count.subscribe();
        let target = *count.borrow_and_update() + by;
        let reached = tokio::time::timeout(PATIENCE, count.wait_for(|count| *count >= target)).await;
        assert!(reached.is_ok(), "the load came to a halt");
    }
}

/// Pays through the store at `url` while `disaster` kills its server, and expects every acknowledged response from the
/// server at the second URL, which `disaster` returns.
async fn assert_nothing_acknowledged_is_lost(url: &str, disaster: impl FnOnce() -> String) {
    let ibid = ibid_at(url).await;
    let (acknowledged, over) = (Mutex::default(), AtomicBool::new(false));
    let load = Arc::new(Load { ibid, acknowledged, count: watch::Sender::new(0), over });
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        callers.spawn(load.clone().pay(caller));
    }
    load.more(200).await;
    let url = block_in_place(disaster);
    // The same store finds the server by itself. Requests in flight at the kill are done by then.
    load.more(200).await;
    load.over.store(true, Ordering::SeqCst);
    while let Some(ended) = callers.join_next().await {
        ended.expect("no caller panics");
    }
    let acknowledged = std::mem::take(&mut *load.acknowledged.lock().expect("no one panics with it"));
    assert!(acknowledged.len() >= 400);
    // Another process, with an empty cache.
    let other = ibid_at(&url).await;
    for key in &acknowledged {
        assert_replays(&other, key).await;
    }
}

on_every_release!(a_server_killed_under_load_loses_nothing_acknowledged);
async fn a_server_killed_under_load_loses_nothing_acknowledged(release: PostgresRelease) {
    let mut server = block_in_place(|| Postgres::start_release(release, &[]));
    let url = server.url();
    let kill = || {
        server.kill();
        server.start_again();
        server.url()
    };
    assert_nothing_acknowledged_is_lost(&url, kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_synchronous_failover_loses_nothing_acknowledged() {
    let mut pair = block_in_place(PostgresPair::synchronous);
    let url = pair.url_for("postgres");
    let fail_over = || {
        pair.fail_over();
        pair.standby.url()
    };
    assert_nothing_acknowledged_is_lost(&url, fail_over).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finish_survives_an_asynchronous_failover() {
    let mut pair = block_in_place(PostgresPair::asynchronous);
    let ibid = ibid_at(&pair.url_for("postgres")).await;
    assert!(matches!(run(&ibid, "kept").await.finish(answer("kept")).await, Outcome::Completed(_)));
    block_in_place(|| pair.cut_off());
    assert!(matches!(run(&ibid, "lost").await.finish(answer("lost")).await, Outcome::Completed(_)));
    let in_flight = run(&ibid, "in flight").await;
    block_in_place(|| pair.fail_over());

    // Its record is gone, and its response is the only one there is.
    let finished = until_stored(in_flight.finish(answer("in flight")).await, &ibid).await;
    assert!(finished, "a finish that finds no record writes it down as completed");
    let other = ibid_at(&pair.standby.url()).await;
    assert_replays(&other, "kept").await;
    assert_replays(&other, "in flight").await;
    // The loss that `ibid doctor` warns of.
    assert!(matches!(begin_key(&other, "lost").await, Ok(Begin::Run(_))), "no server remembers it");
}

/// Returns whether a finish was stored: at once, or later from the queue of those that took too long.
async fn until_stored(finished: Outcome, ibid: &Ibid) -> bool {
    match finished {
        Outcome::Completed(_) => true,
        Outcome::NotDurable => tokio::time::timeout(PATIENCE, ibid.settled()).await.is_ok(),
        _ => false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finish_whose_record_was_removed_writes_it_as_completed() {
    let server = block_in_place(Postgres::start);
    let ibid = ibid_at(&server.url()).await;
    let attempt = run(&ibid, "k").await;
    block_in_place(|| server.sql("postgres", "delete from ibid_record"));
    assert!(matches!(attempt.finish(answer("k")).await, Outcome::Completed(_)));
    assert_replays(&ibid_at(&server.url()).await, "k").await;
}

const CALLERS: usize = 8;

/// Far above what a loaded two-core machine needs: only a real hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);
