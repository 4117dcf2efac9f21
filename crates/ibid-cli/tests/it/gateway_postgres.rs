//! Behaviour that only a PostgreSQL store has: `ibid migrate`, refusals to start, outages of the server and its last
//! connection.

use ibid::store::postgres::PostgresStore;
use ibid_testkit::client::TestRequest;
use ibid_testkit::postgres::Postgres;
use ibid_testkit::upstream::Upstream;

use crate::gateway_store::{stranger, without_connections_nothing_is_lost};
use crate::harness::{On, Setup, assert_problem, is_replay, until_async};

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five").fixture("status=201;body=paid")
}

/// A payment whose response waits for the upstream's gate.
fn pay_slowly(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five").fixture("gate;status=201;body=paid")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn migrate_makes_the_tables_once_and_prints_what_is_missing() {
    let setup = Setup::before("").on(On::Postgres);
    let server = setup.server().expect("a server");
    let url = setup.store();
    let newest = format!("schema {}", PostgresStore::newest_schema());
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
fn migrate_says_what_it_did_to_a_file_too() {
    let setup = Setup::before("");
    let url = setup.store();
    let made = setup.ibid(&["migrate", "--store", &url]);
    assert!(text(&made.stdout).ends_with("made\n"), "{made:?}");
    let again = setup.ibid(&["migrate", "--store", &url]);
    assert!(text(&again.stdout).ends_with("up to date\n"), "{again:?}");
    let printed = setup.ibid(&["migrate", "--print", "--store", &url]);
    assert_eq!(printed.status.code(), Some(2), "{printed:?}");
}

#[test]
fn an_unusable_store_is_refused_without_showing_its_password() {
    let server = Postgres::start_with(&[("synchronous_commit", "off")]);
    let setup = Setup::before("http://127.0.0.1:1");
    let at = |url: String| setup.clone().store_at(&url).expect_refusal();
    let weak = at(server.url().replace("postgres@", "postgres:hunter2@"));
    weak.assert_error(
        3,
        "cannot open the store at `postgres://127.0.0.1:",
        "synchronous_commit = off",
        "durability=weak",
    );
    let nobody = at("postgres://postgres:hunter2@127.0.0.1:1/postgres".to_owned());
    nobody.assert_error(
        3,
        "cannot open the store at `postgres://127.0.0.1:1/postgres`",
        "cannot reach",
        "server runs",
    );
    let stranger = at(server.url().replace("postgres@", "stranger:hunter2@"));
    stranger.assert_error(3, "cannot open the store", "refuses this user", "check user");
    for refused in [weak, nobody, stranger] {
        assert!(!refused.output.contains("hunter2"), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_server_executes_nothing_and_ends_by_itself() {
    let upstream = Upstream::start().await;
    let mut server = Postgres::start();
    let url = server.url().replace("postgres@", "postgres:hunter2@");
    let setup = Setup::before(&upstream.url()).store_at(&url);
    let gateway = setup.config("[store]\nbegin_timeout = \"500ms\"\n").start();
    assert_eq!(gateway.retry_until_settled(&pay("before")).await.status, 201);
    server.stop_immediate();
    assert_problem(&gateway.call(&pay("during")).await, 503, "store-unavailable");
    assert_eq!(upstream.total(), 1, "nothing was executed");
    server.start_again();
    until_async("the gateway takes requests again", async || {
        (gateway.call(&pay("after")).await.status == 201).then_some(())
    })
    .await;
    assert!(is_replay(&gateway.call(&pay("before")).await), "a response that was sent is kept");
    assert!(!gateway.log().contains("hunter2"), "no password in the log: {}", gateway.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_outage_after_a_delivery_loses_no_response() {
    let upstream = Upstream::start().await;
    let mut server = Postgres::start();
    let setup = Setup::before(&upstream.url()).store_at(&server.url());
    let setup = setup.config("[store]\nfinish_wait = \"500ms\"\n");
    let (gateway, other) = (setup.start(), setup.start());
    let request = pay_slowly("held");
    let mut client = gateway.client().await;
    client.send(&request).await;
    upstream.until(|tally| tally.held == 1).await;
    server.stop_immediate();
    upstream.gate().open();
    let answer = client.read().await.expect("the real answer");
    assert_eq!((answer.status, answer.text().as_str()), (201, "paid"));
    assert_eq!(answer.header("idempotency-stored").as_deref(), Some("false"), "{answer:?}");
    assert_eq!(answer.header("idempotency-expires"), None, "no promise is made: {answer:?}");
    server.start_again();
    for gateway in [&other, &gateway] {
        let retry = gateway.retry_until_settled(&request).await;
        assert_eq!((retry.status, retry.text().as_str(), is_replay(&retry)), (201, "paid", true));
        assert_eq!(retry.header("idempotency-stored"), None);
    }
    assert_eq!(upstream.deliveries_begun(), 1);
    assert_eq!(gateway.metric("ibid_answers_not_stored_total", "").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exhausted_pool_delivers_nothing_and_loses_no_response() {
    let upstream = Upstream::start().await;
    let max = (CONNECTIONS + RESERVED).to_string();
    let reserved = RESERVED.to_string();
    let server = Postgres::start_with(&[
        ("max_connections", max.as_str()),
        ("superuser_reserved_connections", reserved.as_str()),
    ]);
    server.sql(
        "postgres",
        "create role app login; create role others login; grant all on schema public to app",
    );
    let setup = Setup::before(&upstream.url()).store_at(&server.url().replace("postgres@", "app@"));
    without_connections_nothing_is_lost(setup, &upstream, async || take_connections(&server).await).await;
}

/// Takes every connection of the server, except those reserved for superusers: also the gateways' own.
async fn take_connections(server: &Postgres) -> Vec<tokio_postgres::Client> {
    let url = server.url().replace("postgres@", "others@");
    let cut = "select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = 'app'";
    let mut taken = Vec::new();
    until_async("no connection is left", async || {
        server.sql("postgres", cut);
        while let Ok(client) = stranger(&url).await {
            taken.push(client);
        }
        // The test has all connections only if no other client has one.
        (taken.len() == CONNECTIONS).then_some(())
    })
    .await;
    taken
}

/// More connections than two gateways ever ask for, so that they can start.
const CONNECTIONS: usize = 21;

/// PostgreSQL's default number of reserved connections; the test uses these to look at the server.
const RESERVED: usize = 3;
