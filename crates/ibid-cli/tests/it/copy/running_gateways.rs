//! Gateways that run on the source while it is copied, or are stopped meanwhile.

use super::*;

/// A gateway that runs on the source stops at the copy, and continues after its cancellation without a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_running_gateway_stops_and_continues_after_a_cancellation() {
    let world = TwoStores::new(On::Postgres, On::Sqlite).await;
    let gateway = start(&world.source);
    gateway.call(&pay("k")).await;
    world.copy_killed_at("copy.copied", &[]);
    assert_problem(&gateway.call(&pay("new")).await, 503, "store-unavailable");
    let store = world.source.store();
    for (name, text) in [("ours.csv", "key,amount\na,1\n"), ("theirs.csv", "key,amount\na,1\nb,2\n")] {
        std::fs::write(world.source.folder().join(name), text).expect("a file");
    }
    let letters = &["reconcile", "ledger", "--ours", "ours.csv", "--theirs", "theirs.csv", "--dead-letters"];
    for words in [&["sweep"][..], &["reap"], &["identity", "change", "--yes"], letters] {
        let words: Vec<&str> = words.iter().copied().chain(["--store", &store]).collect();
        let refused = block_in_place(|| world.source.ibid(&words));
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("keeps this store closed"), "{refused:?}");
    }
    assert!(world.copy(&["--cancel"]).status.success());
    let answer = gateway.retry_until_settled(&pay("new")).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert!(is_replay(&gateway.call(&pay("k")).await));
    assert_eq!((world.upstream.executions("k"), world.upstream.executions("new")), (1, 1));
}

/// T1 (the source's gateway) was stopped just before or after it reserved a key; T2 (the target's) runs the same key; T1 wakes up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_gateway_stopped_before_the_copy_delivers_nothing_after_it() {
    for failpoint in ["begin.before", "begin.after"] {
        let world = TwoStores::new(On::Postgres, On::Sqlite).await;
        let quiet = world.source.clone().config(&format!("{CONFIG}{QUIET}"));
        let armed = quiet.variable("IBID_FAILPOINTS", &format!("{failpoint}=1*return(stop)"));
        let old = start(&armed);
        let addr = old.addr();
        let asked = tokio::spawn(async move { Client::connect(addr).await.call(&pay("k")).await });
        until_stopped(&old).await;
        world.copy_to_the_end();
        let new = start(&world.target);
        let answer = new.call(&pay("k")).await;
        old.signal("CONT");
        assert_problem(&asked.await.expect("no client panics"), 503, "store-unavailable");
        match failpoint {
            "begin.before" => assert_eq!((answer.status, world.upstream.executions("k")), (201, 1)),
            // It may have been sent, for all that the target can know.
            _ => {
                assert_problem(&answer, 409, "outcome-unknown");
                assert_eq!(world.upstream.executions("k"), 0);
            }
        }
    }
}

/// T1 (the source's gateway) was stopped just before it claimed an accepted request; T2 (the target's) delivers it; T1 wakes up
/// and claims it in the source.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_accepted_request_is_delivered_by_one_of_two_stores() {
    let world = TwoStores::new(On::Postgres, On::Sqlite).await;
    let armed = world.source.clone().variable("IBID_FAILPOINTS", "deliver.before=1*return(stop)");
    let old = start(&armed);
    let request = TestRequest::post("/later").key("k").body("{}").fixture("status=201");
    let addr = old.addr();
    let asked = tokio::spawn(async move { Client::connect(addr).await.try_call(&request).await });
    until_stopped(&old).await;
    world.copy_to_the_end();
    let new = start(&world.target);
    world.upstream.until(|tally| tally.total == 1).await;
    old.signal("CONT");
    asked.await.expect("no client panics");
    // The source's record is taken and given back: it was not delivered.
    let claimed = async || {
        let store = open(&world.source).await;
        let page = store.browse().expect("a list").list(Default::default()).await.expect("a list");
        let record = page.items.first().expect("one record").record.clone();
        (record.attempt > 0 && record.version.count > 2).then_some(())
    };
    until_async("the old gateway has tried", claimed).await;
    drop(new);
    assert_eq!(world.upstream.executions("k"), 1);
}

async fn until_stopped(gateway: &Gateway) {
    let stat = format!("/proc/{}/stat", gateway.pid());
    until_async("the node is stopped", async || {
        let stat = std::fs::read_to_string(&stat).expect("/proc shows our child");
        // The format is `pid (name) state …`.
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')).then_some(())
    })
    .await;
}
