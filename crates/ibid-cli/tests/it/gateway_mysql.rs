//! Behaviour that only a MySQL store has: `ibid migrate` and `ibid doctor`, refusals to start, and outages of the server.

use ibid::store::mysql::MysqlStore;
use ibid_testkit::client::TestRequest;
use ibid_testkit::mariadb::MariaDb;
use ibid_testkit::upstream::Upstream;

use crate::gateway_store::without_connections_nothing_is_lost;
use crate::harness::{Setup, assert_problem, is_replay, until_async};

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five").fixture("status=201;body=paid")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn migrate_makes_the_tables_once_and_prints_what_is_missing() {
    let server = MariaDb::shared();
    let setup = Setup::before("").store_at(&server.url());
    let url = setup.store();
    let newest = format!("schema {}", MysqlStore::newest_schema());
    let printed = setup.ibid(&["migrate", "--print", "--store", &url]);
    assert!(printed.status.success(), "{printed:?}");
    let (ours, theirs) = (server.create_database(), server.create_database());
    server.sql(&theirs, &text(&printed.stdout));
    let ours = setup.ibid(&["migrate", "--store", &server.url_for(&ours)]);
    assert!(ours.status.success() && text(&ours.stdout).ends_with(&format!("{newest}, made\n")), "{ours:?}");
    let theirs = server.url_for(&theirs);
    let again = setup.ibid(&["migrate", "--store", &theirs]);
    assert!(text(&again.stdout).ends_with(&format!("{newest}, up to date\n")), "{again:?}");
    let nothing = setup.ibid(&["migrate", "--print", "--store", &theirs]);
    assert!(text(&nothing.stdout).starts_with("-- "), "{nothing:?}");
    let missing = setup.ibid(&["keys", "list", "--store", &url]);
    assert_eq!(missing.status.code(), Some(3), "{missing:?}");
    assert!(text(&missing.stderr).contains("hint: run `ibid migrate`"), "{missing:?}");
}

#[test]
fn an_unusable_store_is_refused_without_showing_its_password() {
    let server = MariaDb::start();
    server.sql("", "create user app identified by 'hunter2'; grant all on *.* to app");
    let setup = Setup::before("http://127.0.0.1:1");
    let at = |url: String| setup.clone().store_at(&url).expect_refusal();
    let url = server.url().replace("root@", "app:hunter2@");
    let mut refusals = Vec::new();
    for (setting, value, cause, hint) in [
        ("innodb_flush_log_at_trx_commit", "2", "innodb_flush_log_at_trx_commit = 2", "durability=weak"),
        ("sync_binlog", "0", "sync_binlog = 0", "durability=weak"),
        ("read_only", "1", "read-only", "name the primary"),
        ("binlog_format", "'STATEMENT'", "binlog_format = STATEMENT", "binlog_format = ROW"),
    ] {
        let before = server.sql("", &format!("select @@global.{setting}"));
        server.sql("", &format!("set global {setting} = {value}"));
        let refused = at(url.clone());
        refused.assert_error(3, "cannot open the store at `mysql://127.0.0.1:", cause, hint);
        let doctor = setup.ibid(&["doctor", "--store", &url]);
        assert!(!doctor.status.success(), "{doctor:?}");
        assert!(text(&doctor.stdout).contains(cause), "{doctor:?}");
        refusals.extend([refused.output, text(&doctor.stdout), text(&doctor.stderr)]);
        server.sql("", &format!("set global {setting} = '{before}'").replace("'0'", "0").replace("'1'", "1"));
    }
    let nowhere = at("mysql://app:hunter2@127.0.0.1:1/db".to_owned());
    nowhere.assert_error(
        3,
        "cannot open the store at `mysql://127.0.0.1:1/db`",
        "cannot reach",
        "server runs",
    );
    let stranger = at(server.url().replace("root@", "other:hunter2@"));
    stranger.assert_error(3, "cannot open the store", "refuses this user", "check user");
    refusals.extend([nowhere.output, stranger.output]);
    assert!(refusals.iter().all(|output| !output.contains("hunter2")), "{refusals:?}");
    let healthy = setup.ibid(&["doctor", "--store", &url]);
    assert!(text(&healthy.stdout).contains("MariaDB 1"), "{healthy:?}");
    assert!(!text(&healthy.stdout).contains("not tested on it"), "{healthy:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_executes_nothing_and_forgets_nothing() {
    let upstream = Upstream::start().await;
    let mut server = MariaDb::start();
    let setup = Setup::before(&upstream.url()).store_at(&server.url());
    let gateway = setup.config("[store]\nbegin_timeout = \"500ms\"\n").start();
    let first = gateway.retry_until_settled(&pay("before")).await;
    assert_eq!((first.status, is_replay(&first)), (201, false));
    assert!(is_replay(&gateway.call(&pay("before")).await));
    server.kill();
    assert_problem(&gateway.call(&pay("during")).await, 503, "store-unavailable");
    assert_eq!(upstream.total(), 1, "nothing was executed");
    server.start_again();
    until_async("the gateway takes requests again", async || {
        (gateway.call(&pay("after")).await.status == 201).then_some(())
    })
    .await;
    assert!(is_replay(&gateway.call(&pay("before")).await), "a response that was sent is kept");
    assert_eq!(upstream.executions("after"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_after_a_delivery_loses_no_response() {
    let upstream = Upstream::start().await;
    let mut server = MariaDb::start();
    let setup = Setup::before(&upstream.url()).store_at(&server.url());
    let setup = setup.config("[store]\nfinish_wait = \"500ms\"\n");
    let (mut gateway, other) = (setup.start(), setup.start());
    let request =
        TestRequest::post("/payments").key("held").body("five").fixture("gate;status=201;body=paid");
    let mut client = gateway.client().await;
    client.send(&request).await;
    upstream.until(|tally| tally.held == 1).await;
    server.kill();
    upstream.gate().open();
    let answer = client.read().await.expect("the real answer");
    assert_eq!((answer.status, answer.text().as_str()), (201, "paid"));
    assert_eq!(answer.header("idempotency-stored").as_deref(), Some("false"), "{answer:?}");
    server.start_again();
    let retry = other.retry_until_settled(&request).await;
    assert_eq!((retry.status, retry.text().as_str(), is_replay(&retry)), (201, "paid", true));
    gateway.kill();
    let retry = setup.start().retry_until_settled(&request).await;
    assert!(is_replay(&retry), "a new gateway has it: {retry:?}");
    assert_eq!(upstream.deliveries_begun(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_connections_loses_no_response() {
    let upstream = Upstream::start().await;
    let server = MariaDb::start();
    // Such a user does not get the one connection that the server keeps free, but the test does.
    let database = server.database();
    server.sql("", &format!("create user app; grant all on {database}.* to app"));
    let setup = Setup::before(&upstream.url()).store_at(&server.url().replace("root@", "app@"));
    without_connections_nothing_is_lost(setup, &upstream, async || {
        let taken: Vec<_> = (0..CONNECTIONS).map(|_| server.session("", "do 0")).collect();
        server.sql("", &format!("set global max_connections = {CONNECTIONS}; kill user app"));
        taken
    })
    .await;
}

/// More connections than two gateways ask for here, so that both can work again.
const CONNECTIONS: usize = 21;
