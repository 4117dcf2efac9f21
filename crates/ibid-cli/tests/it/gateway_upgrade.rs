//! Two releases on one store: a newer one adds a step to the schema and writes codes that the older one does not know. Both
//! serve the same keys at the same time, and the newer one is rolled back.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ibid_testkit::client::{Client, TestRequest};
use ibid_testkit::upstream::Upstream;
use serde_json::Value;
use tokio::sync::RwLock;
use tokio::task::{JoinSet, block_in_place};

use crate::harness::{Gateway, On, Setup, assert_problem, is_replay, on_every_store, until_async};

/// Clients that send keys all the time.
const CLIENTS: usize = 4;

/// Requests that each of them must get through in each phase of the upgrade.
const REQUESTS: usize = 25;

on_every_store!(two_releases_serve_one_store_side_by_side and mysql);
async fn two_releases_serve_one_store_side_by_side(on: On) {
    let upstream = Upstream::start().await;
    let old = Setup::before(&upstream.url()).on(on);
    let new = old.clone().variable("IBID_NEXT_SCHEMA", "1");
    let start = |setup: &Setup| block_in_place(|| setup.start());

    let first_old = start(&old);
    let load = Load::start(&[&first_old]).await;
    load.phase().await;
    assert_eq!(schema(&old), 1);

    // A newer process refuses the older tables, because older processes still use them.
    let refused = block_in_place(|| new.expect_refusal());
    refused.assert_error(3, "cannot open the store at", "needs 2; run `ibid migrate`", "run `ibid migrate`");
    assert_eq!(schema(&old), 1);

    // The upgrade runs under load.
    let migrated = block_in_place(|| new.ibid(&["migrate", "--store", &new.store()]));
    let stdout = String::from_utf8_lossy(&migrated.stdout).into_owned();
    assert!(stdout.ends_with("schema 2, upgraded from 1\n"), "{migrated:?}");
    assert!(has_next_index(&old));
    let mut first_new = start(&new);
    assert_eq!(schema(&old), 2);
    load.send_to(&[&first_old, &first_new]).await;
    load.phase().await;

    // An older process that starts now accepts what was only added.
    let second_old = start(&old);
    load.send_to(&[&first_old, &first_new, &second_old]).await;
    load.phase().await;
    for gateway in [&first_old, &second_old, &first_new] {
        assert_eq!(gateway.page("/readyz").await.status, 200);
    }

    an_unknown_state_fails_one_record(&old, &first_new, &second_old, &upstream).await;
    an_unknown_kind_of_history_is_shown(&old, &first_new, &second_old).await;
    load.phase().await;

    // Rolled back: older processes go on with the newer schema and what the newer process wrote.
    load.send_to(&[&first_old, &second_old]).await;
    first_new.signal("TERM");
    assert_eq!(first_new.wait_for_exit().await.code(), Some(0), "{}", first_new.log());
    let third_old = start(&old);
    load.send_to(&[&second_old, &third_old]).await;
    load.phase().await;
    let keys = load.stop().await;
    assert_eq!(schema(&old), 2);
    for key in &keys {
        assert_eq!(upstream.executions(key), 1, "{key}");
    }
    assert!(is_replay(&third_old.call(&pay(&keys[0])).await));
    // Once the row is as it was, its response is still there.
    // The name of the table makes `key` a name for MySQL, which has it as a word of its language.
    old.sql("update ibid_record set state = 3 where ibid_record.key = 'state'");
    let again = until_async("the record is read again", async || {
        let response = third_old.call(&pay("state")).await;
        (response.status != 503).then_some(response)
    });
    assert!(is_replay(&again.await));
}

/// The newer release writes a state that the older one does not know.
async fn an_unknown_state_fails_one_record(
    setup: &Setup,
    new_gateway: &Gateway,
    old_gateway: &Gateway,
    upstream: &Upstream,
) {
    assert_eq!(new_gateway.call(&pay("state")).await.status, 201);
    setup.sql("update ibid_record set state = 9, next_note = 'new' where ibid_record.key = 'state'");
    // That record fails, and is neither taken for absent nor run again.
    assert_problem(&old_gateway.call(&pay("state")).await, 503, "store-unavailable");
    assert_eq!(upstream.executions("state"), 1);
    // Lists go past it, and say so.
    let (listed, log) = list_key(setup, "state");
    assert!(listed.is_empty() && log.contains("left out"), "{listed:?} {log}");
}

/// The newer release writes a kind of history line that the older one does not know.
async fn an_unknown_kind_of_history_is_shown(setup: &Setup, new_gateway: &Gateway, old_gateway: &Gateway) {
    assert_eq!(new_gateway.call(&pay("history")).await.status, 201);
    setup.sql(
        "insert into ibid_event (id, at, what, detail)
         select id, created_at, 'hibernated', 'for the winter' from ibid_record where ibid_record.key = 'history'",
    );
    assert!(is_replay(&old_gateway.call(&pay("history")).await));
    let (listed, log) = list_key(setup, "history");
    let id = listed.first().and_then(|record| record["id"].as_str()).expect(&log);
    let shown = block_in_place(|| setup.ibid(&["keys", "show", id, "--json", "--store", &setup.store()]));
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    let line = &shown["history"][0];
    assert_eq!(
        (line["what"].as_str(), line["detail"].as_str()),
        (Some("other"), Some("for the winter")),
        "{shown}"
    );
}

/// Lists the records of one key as the older release does. Also returns its messages.
fn list_key(setup: &Setup, key: &str) -> (Vec<Value>, String) {
    let words = ["keys", "list", "--json", "--key", key, "--store", &setup.store()];
    let listed = block_in_place(|| setup.ibid(&words));
    assert!(listed.status.success(), "{listed:?}");
    let records = serde_json::from_slice(&listed.stdout).expect("a list");
    (records, String::from_utf8_lossy(&listed.stderr).into_owned())
}

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).fixture("status=201").body("{}")
}

/// Returns whether the index of the newer release is there and used.
fn has_next_index(setup: &Setup) -> bool {
    let count = if setup.is_on_file() {
        "select count(*) from sqlite_schema where name = 'ibid_record_next'"
    } else if setup.mariadb().is_some() {
        "select count(distinct index_name) from information_schema.statistics
         where table_schema = database() and index_name = 'ibid_record_next'"
    } else {
        "select count(*) from pg_index where indexrelid = 'ibid_record_next'::regclass and indisvalid"
    };
    setup.number(count) == 1
}

/// Returns the step of the schema.
fn schema(setup: &Setup) -> i64 {
    setup.number(match setup.is_on_file() {
        true => "select cast(cast(value as text) as integer) from ibid_meta where name = 'schema'",
        false => "select max(number) from ibid_schema_step",
    })
}

/// Clients that send each key twice, to two gateways, and expect the response of one execution.
struct Load {
    shared: Arc<LoadState>,
    clients: JoinSet<()>,
}

#[derive(Default)]
struct LoadState {
    /// Addresses that requests go to. A client holds the lock until it has the response.
    gateways: RwLock<Vec<SocketAddr>>,
    /// Keys whose response both requests got.
    done: Mutex<Vec<String>>,
    next: AtomicUsize,
    is_stopped: AtomicBool,
}

impl Load {
    async fn start(gateways: &[&Gateway]) -> Load {
        let mut load = Load { shared: Arc::default(), clients: JoinSet::new() };
        load.send_to(gateways).await;
        for _ in 0..CLIENTS {
            load.clients.spawn(load.shared.clone().client());
        }
        load
    }

    /// Sends to these gateways from now on. Returns when no request to another one is in flight, as a balancer does
    /// before its gateway is stopped.
    async fn send_to(&self, gateways: &[&Gateway]) {
        *self.shared.gateways.write().await = gateways.iter().map(|gateway| gateway.addr()).collect();
    }

    /// Waits until the clients got through more requests.
    async fn phase(&self) {
        let count = || self.shared.done.lock().unwrap().len();
        let target = count() + CLIENTS * REQUESTS;
        until_async("the load continues", async || (count() >= target).then_some(())).await;
    }

    /// Ends the clients. Returns the keys that they sent.
    async fn stop(mut self) -> Vec<String> {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("every response was as expected");
        }
        std::mem::take(&mut self.shared.done.lock().unwrap())
    }
}

impl LoadState {
    async fn client(self: Arc<Self>) {
        while !self.is_stopped.load(Ordering::SeqCst) {
            let n = self.next.fetch_add(1, Ordering::SeqCst);
            let key = format!("k{n}");
            for (turn, is_retry) in [false, true].into_iter().enumerate() {
                let gateways = self.gateways.read().await;
                let addr = gateways[(n + turn) % gateways.len()];
                let response = Client::connect(addr).await.call(&pay(&key)).await;
                assert_eq!(
                    (response.status, is_replay(&response)),
                    (201, is_retry),
                    "{key}: {}",
                    response.text()
                );
            }
            self.done.lock().unwrap().push(key);
        }
    }
}
