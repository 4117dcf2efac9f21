//! A server that crashes, cuts connections, refuses them, or does not know whether its standby has it.

use std::collections::HashSet;

use ibid_core::change::{Happened, History};
use ibid_core::store::Browse;
use tokio::task::JoinSet;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loses_nothing_that_was_answered_and_the_store_comes_back_by_itself() {
    let mut server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let before = Arc::new(begin());
    assert!(matches!(commit_patiently(&store, &before).await, Commit::Done(_)));
    server.stop_immediate();
    let during = Arc::new(begin());
    let fate = store.commit(vec![during.clone()]).await.remove(0);
    assert!(fate.expect_err("nobody is there").is_transient(), "an outage passes");
    assert!(store.load(vec![before.id]).await.expect_err("nobody is there").is_transient());
    server.start_again();
    assert!(counted(&during, &commit_patiently(&store, &during).await), "it goes on as if nothing had been");
    let stored = load(&*store, before.id).await.expect("what was answered is there");
    assert!(before.is_stored_as(&stored));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_under_load_cost_no_change_and_double_none() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let mut writers = JoinSet::new();
    for _ in 0..8 {
        let store = store.clone();
        writers.spawn(async move {
            let mut written = Vec::new();
            for n in 0..60 {
                let mut begun = begin();
                if n % 2 == 0 {
                    begun.history.push(History { what: Happened::Operator, detail: "begun".to_owned() });
                }
                let begun = Arc::new(begun);
                assert!(counted(&begun, &commit_patiently(&store, &begun).await), "a fresh name is free");
                written.push(begun.id);
            }
            written
        });
    }
    let mut ids = HashSet::new();
    let mut cuts = 0;
    // As long as anybody writes.
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
    assert!(cuts > 0, "somebody was cut off");
    assert_eq!(ids.len(), 8 * 60);
    // Not asked of the store: its connections were cut a moment ago, and a count is asked once.
    assert_eq!(server.sql(&database, "select count(*) from ibid_record"), "480", "each is stored once");
    assert_eq!(server.sql(&database, "select count(*) from ibid_event"), "240", "and told once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_free_connection_is_an_outage_that_passes() {
    let server = Postgres::start();
    let database = server.create_database();
    server.sql(&database, "create role app login connection limit 2; grant all on schema public to app");
    let url = server.url_for(&database).replace("postgres@", "app@");
    let store = Arc::new(PostgresStore::open(&url, options()).await.expect("the store opens"));
    let mut writers = JoinSet::new();
    for _ in 0..32 {
        let store = store.clone();
        writers.spawn(async move {
            let begun = Arc::new(begin());
            assert!(counted(&begun, &commit_patiently(&store, &begun).await));
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer.expect("a writer ends");
    }
    assert!(server.log().contains("too many connections for role"), "the server did refuse some");
    assert_eq!(store.count().await.map(|counts| counts.by_state[1]).ok(), Some(32));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_no_standby_confirmed_is_a_lost_reply() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    // Policies are in before the waiting begins.
    commit_patiently(&store, &Arc::new(begin())).await;
    let standby = |name: &str| server.set("synchronous_standby_names", name);
    standby("nobody");
    let begun = Arc::new(begin());
    let commit = tokio::spawn({
        let (store, begun) = (store.clone(), begun.clone());
        async move { store.commit(vec![begun]).await.remove(0) }
    });
    let cancel = "select count(pg_cancel_backend(pid)) from pg_stat_activity where wait_event = 'SyncRep'";
    while server.sql("postgres", cancel) == "0" {
        tokio::task::yield_now().await;
    }
    let fate = commit.await.expect("the commit ends");
    assert!(fate.expect_err("nobody knows whether a failover would keep it").is_transient());
    standby("");
    assert!(counted(&begun, &commit_patiently(&store, &begun).await), "it finds itself");
}
