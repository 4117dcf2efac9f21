//! `ibid copy` with real processes: everything survives, a copy that was killed continues or is cancelled, and no request runs twice.

mod running_gateways;

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
#[cfg(feature = "mysql")]
use ibid::store::mysql::{MysqlOptions, MysqlStore};
use ibid::store::postgres::{PostgresOptions, PostgresStore};
#[cfg(feature = "redis")]
use ibid::store::redis::{RedisOptions, RedisStore};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid_core::change::HistoryKind;
use ibid_core::evidence::{EventName, Evidence, EvidenceQuery, EvidenceSubject};
use ibid_core::machine::Observation;
use ibid_core::reap::ReapTarget;
use ibid_core::record::State;
use ibid_core::scope::RecordId;
use ibid_core::store::{RecordFilter, Store};
use ibid_testkit::client::{Client, TestRequest, TestResponse};
use ibid_testkit::contract::{
    LONG, SHORT, TestRecord, answering, draft, finish_with, insert, put, reap_all, telling,
};
#[cfg(feature = "dynamodb")]
use ibid_testkit::dynamodb::DynamoDb;
#[cfg(feature = "redis")]
use ibid_testkit::redis::Redis;
use ibid_testkit::upstream::Upstream;
use serde_json::Value;
use tokio::task::block_in_place;

use crate::harness::{Gateway, On, Setup, assert_problem, bare, is_replay, until_async};

/// A gateway relies on what it read for one second, so a source is closed after two. Requests to `/later` are accepted.
const CONFIG: &str = "[defaults]\nlease = \"1s\"\nin_flight = \"conflict\"\n[[route]]\nmatch = \"POST /later\"\n\
                      answer = \"async\"\n[store]\nidentity_valid_for = \"1s\"\n";

/// Credentials that DynamoDB Local takes. Other stores don't look at them.
const DYNAMODB_LOCAL: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")];

/// Without chores, so that accepted requests stay as they are.
const QUIET: &str = "[upkeep]\nrun = false\n";

fn pay(key: &str) -> TestRequest {
    pay_with(key, "status=201;body=paid")
}

/// A payment that the upstream answers as the fixture says.
fn pay_with(key: &str, fixture: &str) -> TestRequest {
    TestRequest::post("/pay").key(key).body("{}").fixture(fixture)
}

/// Two stores: one with a gateway's records, and an empty one.
struct TwoStores {
    upstream: Upstream,
    source: Setup,
    target: Setup,
}

impl TwoStores {
    async fn new(from: On, to: On) -> TwoStores {
        let upstream = Upstream::start().await;
        let setup = |on| Setup::before(&upstream.url()).config(CONFIG).alone_on(on);
        TwoStores { source: setup(from), target: setup(to), upstream }
    }

    /// Makes two files, one with a completed request.
    async fn with_one_record() -> TwoStores {
        let world = TwoStores::new(On::Sqlite, On::Sqlite).await;
        let mut gateway = start(&world.source);
        gateway.call(&pay("k")).await;
        gateway.kill();
        world
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = bare(self.source.folder());
        command.args(["copy", "--from", &self.source.store(), "--to", &self.target.store()]).args(words);
        command.envs(DYNAMODB_LOCAL);
        command
    }

    fn copy(&self, words: &[&str]) -> Output {
        block_in_place(|| self.command(words).output().expect("the binary starts"))
    }

    fn copy_to_the_end(&self) -> Value {
        let done = self.copy(&["--json"]);
        assert!(done.status.success(), "{done:?}");
        serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
    }

    /// Runs a copy that kills itself at a failpoint.
    fn copy_killed_at(&self, failpoint: &str, words: &[&str]) {
        self.copy_killed_by(&format!("{failpoint}=1*return(kill)"), words);
    }

    fn copy_killed_by(&self, armed: &str, words: &[&str]) {
        let killed = block_in_place(|| self.command(words).env("IBID_FAILPOINTS", armed).output());
        let killed = killed.expect("the binary starts");
        assert_eq!(killed.status.code(), None, "it reaches {armed}: {killed:?}");
    }

    /// Runs a copy that must be refused with this exit code and these words.
    #[track_caller]
    fn assert_refused(&self, words: &[&str], says: &str) {
        let refused = self.copy(words);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(says), "`{says}` in {refused:?}");
    }
}

fn start(setup: &Setup) -> Gateway {
    block_in_place(|| setup.start())
}

#[track_caller]
fn assert_closed(setup: &Setup, cause: &str) {
    block_in_place(|| setup.expect_refusal()).assert_error(1, "a copy keeps this store closed", cause, "");
}

async fn open(setup: &Setup) -> Arc<dyn Store> {
    #[cfg(feature = "mysql")]
    if setup.store().starts_with("mysql:") {
        let store = MysqlStore::open(&setup.store(), MysqlOptions::default()).await;
        return Arc::new(store.expect("it opens"));
    }
    #[cfg(feature = "redis")]
    if setup.store().starts_with("redis:") {
        let store = RedisStore::open(&setup.store(), RedisOptions::default()).await;
        return Arc::new(store.expect("it opens"));
    }
    match setup.server() {
        Some(_) => {
            Arc::new(PostgresStore::open(&setup.store(), PostgresOptions::default()).await.expect("it opens"))
        }
        None => Arc::new(SqliteStore::open(setup.database(), SqliteOptions::default()).expect("it opens")),
    }
}

/// Names a table of this server as the store.
#[cfg(feature = "dynamodb")]
fn on_dynamodb(setup: Setup, server: &DynamoDb) -> Setup {
    let url = format!("dynamodb://ibid?region=local&endpoint={}&skew_max=5s&shards=4", server.url());
    DYNAMODB_LOCAL.into_iter().fold(setup.store_at(&url), |setup, (name, value)| setup.variable(name, value))
}

fn has_no_outbox(setup: &Setup) -> bool {
    ["redis:", "dynamodb:"].iter().any(|scheme| setup.store().starts_with(scheme))
}

/// Returns what `ibid keys show` prints about each record, by id.
fn shown(setup: &Setup) -> Vec<Value> {
    let store = setup.store();
    let listed = setup.ibid(&["keys", "list", "--json", "--limit", "1000", "--store", &store]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap_or_else(|_| panic!("{listed:?}"));
    let records = listed["records"].as_array().or(listed.as_array()).unwrap_or_else(|| panic!("{listed}"));
    let mut ids: Vec<&str> = records.iter().map(|record| record["id"].as_str().expect("an id")).collect();
    ids.sort_unstable();
    let show = |id: &str| {
        let shown = setup.ibid(&["keys", "show", id, "--json", "--store", &store]);
        serde_json::from_slice(&shown.stdout).unwrap_or_else(|_| panic!("{shown:?}"))
    };
    ids.into_iter().map(show).collect()
}

fn effects(setup: &Setup) -> Value {
    let listed = setup.ibid(&["effects", "list", "--json", "--store", &setup.store()]);
    serde_json::from_slice(&listed.stdout).unwrap_or_else(|_| panic!("{listed:?}"))
}

/// Adds what a gateway's requests do not leave behind: a tombstone, a line of history of a record that is gone, and evidence.
/// Returns the id of the tombstone.
async fn add_rows(setup: &Setup) -> RecordId {
    let store = open(setup).await;
    let (stripped, gone) = (TestRecord::fresh(), TestRecord::fresh());
    let mut expired = draft(&stripped, State::Completed);
    (expired.expires_in, expired.purge_in) = (Some(SHORT), Some(LONG));
    put(&*store, &answering(insert(&stripped, expired), b"old")).await;
    let mut purged = draft(&gone, State::Completed);
    (purged.expires_in, purged.purge_in) = (Some(SHORT), Some(SHORT));
    put(&*store, &telling(insert(&gone, purged), HistoryKind::Operator, "it was")).await;
    until_async("both are reaped", async || {
        reap_all(&*store, ReapTarget::Records).await;
        let is_gone = store.load(gone.id).await.expect("a load").is_none();
        let stripped = store.load(stripped.id).await.expect("a load").expect("it is stored");
        (is_gone && stripped.record.identity.is_forgotten()).then_some(())
    })
    .await;
    let evidence = store.evidence().expect("it stores evidence");
    for event in ["evt-1", "evt-2"] {
        let name = EventName { source: "psp".into(), event: event.into() };
        let about = EvidenceSubject::Record(stripped.id);
        let what = Observation::NotExecuted;
        let one = Evidence { name: name.clone(), about, owner: None, what, age: Duration::ZERO };
        evidence.insert_evidence(one, LONG).await.expect("it is stored");
        if event == "evt-2" {
            evidence.dismiss_evidence(vec![name]).await.expect("it is dismissed");
        }
    }
    stripped.id
}

/// Adds an open effect of a record, a letter, in the state of this code: 1 is queued, 2 claimed, and the claim has lapsed.
fn add_effect(setup: &Setup, record: RecordId, state: u8) {
    let hex = record.to_string();
    let rules =
        r#"{"safety":"once","tries_max":16,"lease_ms":60000,"settle_ms":60000,"key_window_ms":86400000}"#;
    let sql = |id: &str, bytes: &str| {
        format!(
            "insert into ibid_effect_call (seq, birth, owes, letter, record, name, downstream_key, rules, payload)
               values (70, 5, false, true, {id}, 'charge', 'ibid-70', '{rules}', {bytes});
             insert into ibid_effect (seq, nonce, due_at, lease_us, created_at, count, tries, state, blocked, dead_letter,
                                      tenant, kind, aggregate)
               values (70, -9, 1, 60000000, 1, 3, 0, {state}, true, false, 'shop', 'charge', 'order-7');"
        )
    };
    match setup.server() {
        Some(server) => drop(server.sql(server.database(), &sql(&format!("'{hex}'"), "'\\x0102'"))),
        None => {
            let file = rusqlite::Connection::open(setup.database()).expect("the file opens");
            file.busy_timeout(Duration::from_secs(30)).expect("a timeout");
            file.execute_batch(&sql(&format!("x'{hex}'"), "x'0102'")).expect("an effect");
        }
    }
}

/// Sends requests that end in every way, and kills the gateway while one is running.
async fn fill(world: &TwoStores) -> Vec<(TestRequest, TestResponse)> {
    let mut gateway = start(&world.source.clone().config(&format!("{CONFIG}{QUIET}")));
    let requests = [
        pay("small"),
        pay_with("large", "status=201;bytes=70000"),
        pay_with("failed", "status=402;body=declined"),
        pay_with("unknown", "cut=read"),
    ];
    let mut sent = Vec::new();
    for request in requests {
        let answer = gateway.call(&request).await;
        sent.push((request, answer));
    }
    let accepted = TestRequest::post("/later").key("later").body("{}").fixture("status=201;body=done");
    assert_eq!(gateway.call(&accepted).await.status, 202);
    let addr = gateway.addr();
    let running = tokio::spawn(async move {
        Client::connect(addr).await.try_call(&pay_with("running", "gate;status=201")).await
    });
    world.upstream.until(|tally| tally.held == 1).await;
    gateway.kill();
    assert_eq!(running.await.expect("no client panics").map(|answer| answer.status), None);
    sent
}

/// Copies a store with rows of every kind that the target can hold, and retries all requests on the target. Returns both stores.
async fn everything_survives(world: TwoStores) -> TwoStores {
    let sent = fill(&world).await;
    let record = add_rows(&world.source).await;
    let has_outbox = !has_no_outbox(&world.target);
    if has_outbox {
        add_effect(&world.source, record, 1);
    }
    let rows = world.copy_to_the_end();
    let effect_count = u64::from(has_outbox);
    let counts = (&7.into(), &effect_count.into(), &2.into());
    assert_eq!((&rows["records"], &rows["effects"], &rows["evidence"]), counts);
    assert_eq!(rows["left_behind"], 0, "{rows}");
    let before = block_in_place(|| shown(&world.source));
    assert_eq!(before.len(), 7, "{before:?}");
    assert!(before.iter().all(|record| record["state"] != "in_progress"), "{before:?}");
    assert_eq!(block_in_place(|| shown(&world.target)), before);
    if has_outbox {
        assert_eq!(block_in_place(|| effects(&world.target)), block_in_place(|| effects(&world.source)));
    }
    if !world.target.store().starts_with("dynamodb:") {
        let store = open(&world.target).await;
        let evidence = store.evidence().expect("it stores evidence");
        let page = evidence.open_evidence(EvidenceQuery::All, None, 10).await.expect("a page");
        assert_eq!(page.items.len(), 1, "the other one was dismissed");
    }

    assert_closed(&world.source, "this store was copied to");
    let gateway = start(&world.target);
    for (request, answer) in &sent {
        let retried = gateway.call(request).await;
        match answer.status {
            502 | 504 => assert_problem(&retried, 409, "outcome-unknown"),
            _ => {
                assert!(is_replay(&retried), "{retried:?}");
                assert_eq!((retried.status, &retried.body), (answer.status, &answer.body));
            }
        }
    }
    assert_problem(&gateway.call(&pay_with("running", "gate;status=201")).await, 409, "outcome-unknown");
    let accepted = TestRequest::post("/later").key("later").body("{}").fixture("status=201;body=done");
    let page = "/.ibid/keys/later?method=POST&path=%2Flater";
    until_async("the accepted request is delivered", async || {
        let status: Value = serde_json::from_slice(&gateway.call(&TestRequest::get(page)).await.body).ok()?;
        (status["state"] == "completed").then_some(())
    })
    .await;
    assert_eq!(gateway.call(&accepted).await.status, 201);
    assert_eq!(world.upstream.tally().repeated_keys(), [""; 0], "nothing runs twice");
    assert_eq!(gateway.call(&pay("new")).await.status, 201);
    let again = world.copy_to_the_end();
    assert_eq!(again["was_open"], true, "{again}");
    world
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_survives_from_sqlite_to_mysql_and_back() {
    let world = TwoStores::new(On::Sqlite, On::Mysql).await;
    let TwoStores { upstream, target: mysql, .. } = everything_survives(world).await;
    let file = Setup::before(&upstream.url()).config(CONFIG).alone_on(On::Sqlite);
    let back = TwoStores { source: mysql, target: file, upstream };
    let rows = back.copy_to_the_end();
    assert_eq!((&rows["records"], &rows["effects"], &rows["evidence"]), (&8.into(), &1.into(), &2.into()));
    assert_eq!(block_in_place(|| shown(&back.target)), block_in_place(|| shown(&back.source)));
    assert_eq!(block_in_place(|| effects(&back.target)), block_in_place(|| effects(&back.source)));
    assert!(is_replay(&start(&back.target).call(&pay("small")).await));
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_survives_from_sqlite_to_redis_and_back() {
    // A server that does not flush every write: a copy takes it only if the URL says so.
    let server = Redis::start_with(&[("appendfsync", "everysec")]);
    let mut world = TwoStores::new(On::Sqlite, On::Sqlite).await;
    world.target = world.target.store_at(&server.url());
    let refused = world.copy(&[]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    world.target = world.target.store_at(&format!("{}?durability=weak", server.url()));
    let TwoStores { upstream, target: redis, .. } = everything_survives(world).await;
    let file = Setup::before(&upstream.url()).config(CONFIG).alone_on(On::Sqlite);
    let back = TwoStores { source: redis, target: file, upstream };
    let rows = back.copy_to_the_end();
    assert_eq!((&rows["records"], &rows["effects"], &rows["evidence"]), (&8.into(), &0.into(), &2.into()));
    assert_eq!(block_in_place(|| shown(&back.target)), block_in_place(|| shown(&back.source)));
    assert!(is_replay(&start(&back.target).call(&pay("small")).await));
}

#[cfg(feature = "dynamodb")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_survives_from_sqlite_to_dynamodb_and_back() {
    let server = DynamoDb::start();
    let mut world = TwoStores::new(On::Sqlite, On::Sqlite).await;
    world.target = on_dynamodb(world.target, &server);
    let TwoStores { upstream, target: table, .. } = everything_survives(world).await;
    let file = Setup::before(&upstream.url()).config(CONFIG).alone_on(On::Sqlite);
    let back = TwoStores { source: table, target: file, upstream };
    let rows = back.copy_to_the_end();
    assert_eq!((&rows["records"], &rows["effects"], &rows["evidence"]), (&8.into(), &0.into(), &2.into()));
    assert_eq!(block_in_place(|| shown(&back.target)), block_in_place(|| shown(&back.source)));
    assert!(is_replay(&start(&back.target).call(&pay("small")).await));
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn open_effects_are_not_left_behind_for_redis() {
    let server = Redis::start();
    let mut world = TwoStores::with_one_record().await;
    world.target = world.target.store_at(&server.url());
    refuses_open_effects(world).await;
}

#[cfg(feature = "dynamodb")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn open_effects_are_not_left_behind_for_dynamodb() {
    let server = DynamoDb::start();
    let mut world = TwoStores::with_one_record().await;
    world.target = on_dynamodb(world.target, &server);
    refuses_open_effects(world).await;
}

/// The target has no outbox, so an open effect would be lost.
async fn refuses_open_effects(world: TwoStores) {
    add_effect(&world.source, TestRecord::fresh().id, 1);
    world.assert_refused(&[], "the target can't hold open effects");
    assert!(is_replay(&start(&world.source).call(&pay("k")).await), "the source was not closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_survives_from_sqlite_to_postgres() {
    everything_survives(TwoStores::new(On::Sqlite, On::Postgres).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_survives_from_postgres_to_sqlite() {
    everything_survives(TwoStores::new(On::Postgres, On::Sqlite).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_survives_from_sqlite_to_sqlite() {
    everything_survives(TwoStores::new(On::Sqlite, On::Sqlite).await).await;
}

/// The steps of a copy after which it may die, and whether the source is closed by then.
const STEPS: [(&str, bool); 6] = [
    ("copy.joined", false),
    ("copy.closed", true),
    ("copy.retired", true),
    ("copy.batch", true),
    ("copy.copied", true),
    ("copy.compared", true),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_copy_killed_at_any_step_continues() {
    let steps = STEPS.into_iter().chain([("copy.opened", true)]);
    // All at once, because each waits for running nodes.
    for ended in join_all(steps.map(|(step, is_closed)| tokio::spawn(continue_after(step, is_closed)))).await
    {
        ended.expect("it continues");
    }
}

async fn continue_after(step: &'static str, is_closed: bool) {
    let world = TwoStores::with_one_record().await;
    world.copy_killed_at(step, &[]);
    if is_closed {
        assert_closed(&world.source, "this store is being copied to");
    }
    if step != "copy.opened" {
        assert_closed(&world.target, "this store is being filled from");
    }
    world.copy_to_the_end();
    assert_closed(&world.source, "this store was copied to");
    assert!(is_replay(&start(&world.target).call(&pay("k")).await), "{step}");
    assert_eq!(world.upstream.executions("k"), 1, "{step}");
}

/// Rows of the batch that was copied last move on before the copy continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_copy_killed_after_any_batch_continues_with_moving_rows() {
    let worlds = join_all((0..4).map(|_| with_moving_rows(On::Sqlite))).await.into_iter().enumerate();
    let batches = worlds.map(|(passed, world)| tokio::spawn(continue_with_moving_rows(world, passed)));
    for ended in join_all(batches).await {
        ended.expect("it continues");
    }
}

/// Each kind of server tests the fence and replaces rows by separate statements.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_copy_to_a_server_killed_after_a_batch_continues() {
    let servers = [
        On::Postgres,
        #[cfg(feature = "mysql")]
        On::Mysql,
    ];
    // The batch of effects, and that of records.
    let cases = servers.into_iter().flat_map(|on| [(on, 1), (on, 2)]);
    let worlds = join_all(cases.map(async |(on, passed)| (with_moving_rows(on).await, passed))).await;
    let batches =
        worlds.into_iter().map(|(world, passed)| tokio::spawn(continue_with_moving_rows(world, passed)));
    for ended in join_all(batches).await {
        ended.expect("it continues");
    }
}

async fn with_moving_rows(to: On) -> TwoStores {
    let world = TwoStores::new(On::Sqlite, to).await;
    let mut gateway = start(&world.source);
    gateway.call(&pay("k")).await;
    gateway.call(&pay_with("moving", "cut=read")).await;
    gateway.kill();
    let record = add_rows(&world.source).await;
    add_effect(&world.source, record, 2);
    world
}

async fn continue_with_moving_rows(world: TwoStores, batches_passed: usize) {
    world.copy_killed_by(&format!("copy.batch={batches_passed}*off->1*return(kill)"), &[]);
    move_rows(&world.source).await;
    let rows = world.copy_to_the_end();
    let counts = ["records", "effects", "evidence"].map(|part| rows[part].as_u64());
    assert_eq!(counts, [3, 1, 2].map(Some), "{batches_passed}");
    assert_eq!(block_in_place(|| effects(&world.target)), block_in_place(|| effects(&world.source)));
    let gateway = start(&world.target);
    assert!(is_replay(&gateway.call(&pay("k")).await));
    let moved = gateway.call(&pay_with("moving", "cut=read")).await;
    // The record was copied before or after it moved, and is never free.
    assert!(moved.status == 409 || is_replay(&moved), "{moved:?}");
    assert_eq!(world.upstream.executions("moving"), 1);
}

/// Settles the record of unknown outcome, as a node does whose answer comes late, and dismisses evidence.
async fn move_rows(setup: &Setup) {
    let store = open(setup).await;
    let unknown = RecordFilter::default().with(|filter| filter.state = Some(State::Unknown));
    let page = store.browse().expect("a list").list(unknown).await.expect("a list");
    let record = page.items.first().expect("its outcome is unknown").record.clone();
    put(&*store, &finish_with(&record, b"late")).await;
    let name = EventName { source: "psp".into(), event: "evt-1".into() };
    store
        .evidence()
        .expect("it stores evidence")
        .dismiss_evidence(vec![name])
        .await
        .expect("it is dismissed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_copy_killed_at_any_step_can_be_cancelled() {
    for ended in join_all(STEPS.map(|(step, _)| tokio::spawn(cancel_after(step)))).await {
        ended.expect("it is cancelled");
    }
}

async fn cancel_after(step: &'static str) {
    let world = TwoStores::with_one_record().await;
    world.copy_killed_at(step, &[]);
    let cancelled = world.copy(&["--cancel"]);
    assert!(cancelled.status.success(), "{step}: {cancelled:?}");
    assert_closed(&world.target, "left by a copy that was cancelled");
    assert!(is_replay(&start(&world.source).call(&pay("k")).await), "{step}");
    world.assert_refused(&[], "the target takes part in another copy");
    assert_eq!(world.upstream.executions("k"), 1, "{step}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cancellation_killed_midway_is_ended_by_either_command() {
    for word in [&["--cancel"][..], &[]] {
        let world = TwoStores::new(On::Sqlite, On::Sqlite).await;
        start(&world.source).kill();
        world.copy_killed_at("copy.batch", &[]);
        world.copy_killed_at("copy.cancelled", &["--cancel"]);
        assert_closed(&world.source, "this store is being copied to");
        assert_closed(&world.target, "left by a copy that was cancelled");
        let ended = world.copy(word);
        assert_eq!(ended.status.success(), word == ["--cancel"], "{ended:?}");
        start(&world.source).kill();
        assert_closed(&world.target, "left by a copy that was cancelled");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_copy_that_has_ended_is_not_cancelled() {
    let world = TwoStores::new(On::Sqlite, On::Sqlite).await;
    start(&world.source).kill();
    drop(open(&world.target).await);
    world.assert_refused(&["--cancel"], "neither store takes part in a copy");
    world.copy_killed_at("copy.opened", &[]);
    world.assert_refused(&["--cancel"], "it can't be cancelled any more");
    start(&world.target).kill();
    world.assert_refused(&["--cancel"], "it can't be cancelled any more");
    assert_closed(&world.source, "this store is being copied to");
    world.copy_to_the_end();
    world.assert_refused(&["--cancel"], "it can't be cancelled any more");
    assert_closed(&world.source, "this store was copied to");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_copy_needs_a_used_source_and_an_empty_target() {
    let world = TwoStores::new(On::Sqlite, On::Sqlite).await;
    let missing = world.copy(&[]);
    assert_eq!(missing.status.code(), Some(3), "no source: {missing:?}");
    drop(open(&world.source).await);
    world.assert_refused(&[], "no process has used it");
    start(&world.source).kill();
    start(&world.target).kill();
    world.assert_refused(&[], "the target is in use");
    let store = world.source.store();
    let memory = block_in_place(|| world.source.ibid(&["copy", "--from", &store, "--to", "memory:"]));
    assert_eq!(memory.status.code(), Some(2), "{memory:?}");
    start(&world.source).kill();
}
