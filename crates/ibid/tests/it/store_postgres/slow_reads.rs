//! Reads of operators that take long: bounded, cancelled with their caller, and separate from commits.

use ibid_core::scope::RecordId;
use ibid_core::store::RecordFilter;

use super::*;

/// Makes every read of the history sleep for a minute.
const SLEEPY_HISTORY: &str = "alter table ibid_event rename to ibid_event_rows;
     create function sleepy() returns setof ibid_event_rows language plpgsql as
       $$ begin perform pg_sleep(60); return; end $$;
     create view ibid_event as select * from sleepy()";

const SLEEPING: &str =
    "select count(*) from pg_stat_activity where wait_event = 'PgSleep' and application_name = 'ibid'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_its_caller_gives_up_ends_on_the_server() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    server.sql(&database, SLEEPY_HISTORY);
    let sleeping = || server.sql(&database, SLEEPING);
    for _ in 0..4 {
        let reader = tokio::spawn({
            let store = store.clone();
            async move { browse(&store).history(RecordId::from_bytes([7; RecordId::LEN])).await }
        });
        while sleeping() == "0" {
            tokio::task::yield_now().await;
        }
        reader.abort();
        let given_up = std::time::Instant::now();
        while sleeping() != "0" {
            tokio::task::yield_now().await;
        }
        assert!(given_up.elapsed() < 5 * SECOND, "its own time limit ended it");
        // Each was on one of two connections, and both would be busy by now.
        browse(&store).list(RecordFilter::default()).await.expect("a list");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reads_hold_up_no_commit() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    server.sql(&database, SLEEPY_HISTORY);
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(
                async move { browse(&store).history(RecordId::from_bytes([7; RecordId::LEN])).await },
            )
        })
        .collect();
    while server.sql(&database, SLEEPING) != "2" {
        tokio::task::yield_now().await;
    }
    for _ in 0..10 {
        let change = Arc::new(begin());
        assert!(matches!(commit_patiently(&store, &change).await, Commit::Done(_)));
        let stored = load(&*store, change.id).await.expect("it exists");
        let leases = vec![(change.id, stored.record.version)];
        store.renew(leases).await.expect("a renewal succeeds");
        let finish = Arc::new(finish(&stored.record));
        assert!(matches!(commit_patiently(&store, &finish).await, Commit::Done(_)));
    }
    assert_eq!(server.sql(&database, SLEEPING), "2", "all the while");
    readers.iter().for_each(tokio::task::JoinHandle::abort);
}
