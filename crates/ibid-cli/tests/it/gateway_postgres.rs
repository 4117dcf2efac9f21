//! What only a PostgreSQL store does: `ibid migrate`, refusals to start, and an outage of the server.

use ibid::store::postgres::PostgresStore;
use ibid_testkit::client::Request;
use ibid_testkit::postgres::Postgres;
use ibid_testkit::upstream::Upstream;

use crate::harness::{On, Setup, assert_problem, is_replay, until_async};

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
fn a_store_that_can_not_be_used_is_refused_and_its_password_never_said() {
    let server = Postgres::start_with(&[("synchronous_commit", "off")]);
    let setup = Setup::before("http://127.0.0.1:1");
    let at = |url: String| setup.clone().store_at(&url).refused();
    let weak = at(server.url().replace("postgres@", "postgres:hunter2@"));
    weak.says(
        3,
        "cannot open the store at `postgres://127.0.0.1:",
        "synchronous_commit = off",
        "accept_weak",
    );
    let nobody = at("postgres://postgres:hunter2@127.0.0.1:1/postgres".to_owned());
    nobody.says(
        3,
        "cannot open the store at `postgres://127.0.0.1:1/postgres`",
        "cannot reach",
        "server runs",
    );
    let stranger = at(server.url().replace("postgres@", "nobody:hunter2@"));
    stranger.says(3, "cannot open the store", "refuses this user", "check user");
    for refused in [weak, nobody, stranger] {
        assert!(!refused.said.contains("hunter2"), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_server_executes_nothing_and_ends_by_itself() {
    let upstream = Upstream::start().await;
    let mut server = Postgres::start();
    let url = server.url().replace("postgres@", "postgres:hunter2@");
    let gateway = Setup::before(&upstream.url()).store_at(&url).start();
    let pay = |key: &str| Request::post("/payments").key(key).body("five").fixture("status=201;body=paid");
    assert_eq!(gateway.call(&pay("before")).await.status, 201);
    server.stop_immediate();
    assert_problem(&gateway.call(&pay("during")).await, 503, "store-unavailable");
    assert_eq!(upstream.total(), 1, "nothing was executed");
    server.start_again();
    until_async("the gateway takes requests again", async || {
        (gateway.call(&pay("after")).await.status == 201).then_some(())
    })
    .await;
    assert!(is_replay(&gateway.call(&pay("before")).await), "what was answered is kept");
    assert!(!gateway.said().contains("hunter2"), "no password in the log: {}", gateway.said());
}
