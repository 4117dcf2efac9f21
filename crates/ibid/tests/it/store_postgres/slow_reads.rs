//! Reads of operators that take long: bounded, cancelled with their caller, and separate from commits.

use ibid::operator::Operator;
use ibid::{Ibid, Settings};
use ibid_core::effect::EffectFilter;
use ibid_core::scope::RecordId;
use ibid_core::store::{RecordFilter, RowCount};

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

/// A store with two connections has none for slow reads alone, so they end soon. A count that takes too long leaves out only
/// what it could not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_that_takes_too_long_fails_no_other_count() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open_with(&server, &database, |options| options.connections_max = 2).await;
    let change = Arc::new(begin());
    assert!(matches!(commit_patiently(&store, &change).await, Commit::Done(_)));
    server.sql(
        &database,
        "alter table ibid_effect rename to ibid_effect_rows;
         create function sleepy() returns setof ibid_effect_rows language plpgsql as
           $$ begin perform pg_sleep(60); return; end $$;
         create view ibid_effect as select * from sleepy()",
    );
    let counts = browse(&store).count().await.expect("it is counted");
    assert_eq!(counts.dead_effects, RowCount::Unknown);
    assert_eq!(counts.by_state[1], RowCount::Exact(1), "in progress");
    let filter = EffectFilter::default().with(|filter| filter.dead_letter = true);
    let ibid = Ibid::start(store.clone(), Settings::default()).await.expect("it starts");
    let listed = Operator::new(&ibid).effects(filter).await;
    let error = format!("{:?}", listed.expect_err("it takes too long"));
    assert!(error.contains("TooSlow"), "{error}");
}
