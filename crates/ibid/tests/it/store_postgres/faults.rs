//! A server that crashes, cuts connections, refuses them, or does not know whether its standby has a commit.

use std::collections::HashSet;

use ibid_core::change::{History, HistoryKind};
use ibid_core::sql::Statement;
use ibid_core::store::Work;
use tokio::task::JoinSet;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_crash_loses_no_answered_change() {
    let mut server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let before = Arc::new(begin());
    assert!(matches!(commit_patiently(&store, &before).await, Commit::Done(_)));
    server.stop_immediate();
    let during = Arc::new(begin());
    let fate = store.commit(during.clone(), None).await;
    assert!(fate.expect_err("the server is down").is_transient(), "an outage passes");
    assert!(store.load(before.id).await.expect_err("the server is down").is_transient());
    server.start_again();
    assert!(
        was_committed(&during, &commit_patiently(&store, &during).await),
        "it continues as if nothing had happened"
    );
    let stored = load(&*store, before.id).await.expect("what was answered is there");
    assert!(before.is_stored_as(&stored));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut_under_load_lose_no_change() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let mut writers = JoinSet::new();
    for _ in 0..8 {
        let store = store.clone();
        writers.spawn(async move {
            let mut written = Vec::new();
            for n in 0..60 {
                let mut change = begin();
                if n % 2 == 0 {
                    change.history.push(History { what: HistoryKind::Operator, detail: "begun".to_owned() });
                }
                let change = Arc::new(change);
                assert!(
                    was_committed(&change, &commit_patiently(&store, &change).await),
                    "a fresh name is free"
                );
                written.push(change.id);
            }
            written
        });
    }
    let mut ids = HashSet::new();
    let mut cuts = 0;
    // Cuts connections while any writer runs.
    while let Some(written) = match writers.try_join_next() {
        Some(written) => Some(Some(written)),
        None if writers.is_empty() => None,
        None => Some(None),
    } {
        match written {
            Some(written) => ids.extend(written.expect("a writer ends")),
            None => {
                let cut = "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = 'ibid'";
                cuts += server.sql(&database, cut).parse::<u32>().expect("a number");
            }
        }
    }
    assert!(cuts > 0, "connections were cut");
    assert_eq!(ids.len(), 8 * 60);
    // Counted by `psql`: the store's connections were cut a moment ago, and it does not retry a count.
    assert_eq!(server.sql(&database, "select count(*) from ibid_record"), "480", "each is stored once");
    assert_eq!(server.sql(&database, "select count(*) from ibid_event"), "240", "and told once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_free_connection_is_an_outage_that_passes() {
    let server = Postgres::start();
    let database = server.create_database();
    server.sql(&database, "create role app login connection limit 1; grant all on schema public to app");
    let url = server.url_for(&database).replace("postgres@", "app@");
    let store = Arc::new(PostgresStore::open(&url, options()).await.expect("the store opens"));
    let mut writers = JoinSet::new();
    for _ in 0..32 {
        let store = store.clone();
        writers.spawn(async move {
            let change = Arc::new(begin());
            assert!(was_committed(&change, &commit_patiently(&store, &change).await));
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer.expect("a writer ends");
    }
    assert!(server.log().contains("too many connections for role"), "the server did refuse some");
    assert_eq!(server.sql(&database, "select count(*) from ibid_record"), "32");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_no_standby_confirmed_is_a_lost_reply() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    // Stores the policy before commits begin to wait.
    commit_patiently(&store, &Arc::new(begin())).await;
    let standby = |name: &str| server.set("synchronous_standby_names", name);
    standby("absent");
    let change = Arc::new(begin());
    let commit = tokio::spawn({
        let (store, change) = (store.clone(), change.clone());
        async move { store.commit(change, None).await }
    });
    while server.sql("postgres", CANCEL_WAITS) == "0" {
        tokio::task::yield_now().await;
    }
    let fate = commit.await.expect("the commit ends");
    assert!(fate.expect_err("it is unknown whether a failover would keep it").is_transient());
    standby("");
    assert!(was_committed(&change, &commit_patiently(&store, &change).await), "it finds itself");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_work_that_no_standby_confirmed_is_a_lost_reply() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    server.sql(&database, "create table done (n int)");
    let work = || -> Work {
        static ADD: Statement = Statement { text: "insert into done values (1)", columns: &[] };
        Box::new(|tx| Box::pin(async move { tx.execute(&ADD, &[]).await.map(drop) }))
    };
    server.set("synchronous_standby_names", "absent");
    let done = tokio::spawn({
        let store = store.clone();
        async move { store.sql().expect("it has one").work(work()).await }
    });
    while server.sql("postgres", CANCEL_WAITS) == "0" {
        tokio::task::yield_now().await;
    }
    let error = done.await.expect("it ends").expect_err("it is unknown whether a failover would keep it");
    assert!(error.is_transient() && !error.is_unwritten(), "{error:?}");
    server.set("synchronous_standby_names", "");
    store.sql().expect("it has one").work(work()).await.expect("it works again");
    assert_eq!(server.sql(&database, "select count(*) from done"), "2", "it was there all the same");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_always_works_in_read_committed() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    server.sql(
        &database,
        &format!("alter database {database} set default_transaction_isolation = 'serializable'"),
    );
    server.sql(
        "postgres",
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'ibid'",
    );
    static TAKE: Statement =
        Statement { text: "insert into seen select current_setting('transaction_isolation')", columns: &[] };
    server.sql(&database, "create table seen (level text)");
    let work = || -> Work { Box::new(|tx| Box::pin(async move { tx.execute(&TAKE, &[]).await.map(drop) })) };
    while store.sql().expect("it has one").work(work()).await.is_err() {}
    assert_eq!(server.sql(&database, "select distinct level from seen"), "read committed");
}

/// The server is in this state after an upgrade of the system's locales.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warning_at_the_start_of_a_session_does_not_end_it() {
    let server = Postgres::start();
    let database = server.create_database();
    server.sql(
        "postgres",
        &format!("update pg_database set datcollversion = '0' where datname = '{database}'"),
    );
    let store = open(&server, &database).await;
    let sessions = || -> HashSet<String> {
        let ours = "select pid from pg_stat_activity where application_name = 'ibid'";
        server.sql("postgres", ours).lines().map(str::to_owned).collect()
    };
    commit_patiently(&store, &Arc::new(begin())).await;
    let before = sessions();
    for _ in 0..20 {
        commit_patiently(&store, &Arc::new(begin())).await;
    }
    assert!(!before.is_empty() && before.is_subset(&sessions()), "they are still there");
}

/// Cancels the wait for a standby, as an impatient operator does, and returns how many waited.
const CANCEL_WAITS: &str =
    "select count(pg_cancel_backend(pid)) from pg_stat_activity where wait_event = 'SyncRep'";
