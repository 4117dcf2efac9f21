//! Bodies of a record, which have no id: each is removed with its generation, and with no other.

use ibid_core::change::InstantChange;
use ibid_core::policy::Policy;
use ibid_core::reap::ReapTarget;
use ibid_core::record::Nonce;
use ibid_core::scope::RecordId;
use ibid_testkit::contract::{SHORT, answering, fresh_under, load_all, put, reap_all};

use super::*;

/// A response that is too large for its row.
const LARGE: &[u8] = &[b'x'; 3000];

/// A finish with a response that is stored apart from its row.
fn finish(record: &Record) -> Change {
    finish_with(record, LARGE)
}

fn count_bodies(server: &Postgres, database: &str) -> String {
    server.sql(database, "select count(*) from ibid_body")
}

/// The begin of another generation of `record`.
fn next_generation(record: &Record, clears_bodies: bool) -> Change {
    let mut begin =
        replace(record, Draft { due_in: Some(LONG), ..draft(&name_of(record), State::InProgress) });
    begin.clears_bodies = clears_bodies;
    let birth = begin.nonce;
    let draft = begin.draft.as_mut().expect("it writes");
    (draft.birth, draft.created) = (birth, InstantChange::Now);
    begin
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_generation_leaves_nothing_of_the_one_before_it() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    // All of them begin at the same instant.
    let begins: Vec<Change> = (0..20).map(|_| begin()).collect();
    commit_all(&*store, begins.clone()).await;
    let records = async || load_all(&*store, begins.iter().map(|begin| begin.id)).await;
    let finishes = records().await.iter().map(|stored| finish(&stored.record)).collect();
    commit_all(&*store, finishes).await;
    assert_eq!(count_bodies(&server, &database), "20");
    // New generations with and without `clears_bodies`, in one batch.
    let finished = records().await;
    let news = finished[..10].iter().zip([true, false].into_iter().cycle());
    commit_all(&*store, news.map(|(stored, clears)| next_generation(&stored.record, clears)).collect()).await;
    assert_eq!(count_bodies(&server, &database), "10");
    for (index, stored) in records().await.into_iter().enumerate() {
        assert_eq!(stored.response.is_some(), index >= 10, "only of those");
    }
    let finishes = records().await[..10].iter().map(|stored| finish(&stored.record)).collect();
    commit_all(&*store, finishes).await;
    assert_eq!(count_bodies(&server, &database), "20");
}

/// The change keeps its generation and replaces the body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_body_is_stored_once() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let running = put(&*store, &begin()).await.record;
    let done = put(&*store, &finish(&running)).await.record;
    let mut other = answering(replace(&done, draft(&name_of(&done), State::Completed)), LARGE);
    other.clears_bodies = true;
    assert_eq!(put(&*store, &other).await.body(), Some(LARGE));
    assert_eq!(count_bodies(&server, &database), "1");
}

/// A body with the same instant belongs to the record that has its birth.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reaper_removes_only_the_bodies_of_reaped_records() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let short = Arc::new(Policy::default().with(|policy| {
        policy.lease = LONG;
        policy.retention = SHORT;
    }));
    let begins: Vec<Change> = (0..20)
        .map(|index| if index % 2 == 0 { fresh_under(&TestRecord::fresh(), &short) } else { begin() })
        .collect();
    let fates = commit_all(&*store, begins.clone()).await;
    let record = |begin: &Change| match &fates[&begin.id] {
        Commit::Done(stamp) => begin.apply(*stamp, None).expect("it writes"),
        other => panic!("a fresh name is free: {other:?}"),
    };
    let records: Vec<Arc<Record>> = begins.iter().map(record).collect();
    let instants = server.sql(&database, "select count(distinct created_at) from ibid_record");
    assert!(instants.parse::<u32>().expect("a number") < 20, "some begin at the same instant: {instants}");
    commit_all(&*store, records.iter().map(|record| finish(record)).collect()).await;
    pass(&server, &database, SECOND);
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.removed, 10);
    assert_eq!(count_bodies(&server, &database), "10");
    for record in records.iter().skip(1).step_by(2) {
        assert!(load(&*store, record.id).await.expect("it stays").response.is_some());
    }
    let bodies = store.bodies().expect("it has bodies");
    assert_eq!(bodies.bodies(records[1].id, Nonce(!records[1].birth.0)).await.expect("an answer"), []);
}

/// Between the reaper's read of a row and its lock on it, the row is finished and becomes removable. The reaper's
/// statement does not see the body that was added meanwhile, so the row has to wait for the next step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_changes_under_the_reaper_is_left_alone() {
    for restarted in [false, true] {
        let server = Postgres::shared();
        let database = server.create_database();
        let store = open(&server, &database).await;
        let (first, change) = super::upkeep::going();
        put(&*store, &change).await;
        let mut second = put(&*store, &begin()).await.record;
        if restarted {
            second = put(&*store, &finish(&second)).await.record;
        }
        let at = |id: RecordId, at: i64| format!("update ibid_record set reap_at = {at} where id = '{id}'");
        // The reaper reaches the first row, which still has an open effect, and the server waits for our lock when it reads
        // that. By then the reaper knows only the old version of the second row.
        let hold = format!(
            "{}; {};
             insert into ibid_effect_call (birth, owes, letter, record, name, downstream_key, rules)
             values (1, false, false, '{}', 'mail', 'd', '{{}}');
             insert into ibid_effect (seq, nonce, lease_us, created_at, count, tries, state, blocked, dead_letter, tenant, kind)
             select seq, 1, 0, 0, 1, 0, 1, false, false, 'shop', 'http' from ibid_effect_call;
             create function hold() returns boolean language plpgsql set lock_timeout = 0 as
               $$ begin perform pg_advisory_xact_lock_shared(7); return true; end $$;
             alter table ibid_effect rename to ibid_effect_rows;
             create view ibid_effect as select * from ibid_effect_rows where hold()",
            at(first.id, 1_000_000_000),
            at(second.id, 2_000_000_000),
            first.id
        );
        server.sql(&database, &hold);
        let holder = stranger(&server, &database).await;
        holder.batch_execute("select pg_advisory_lock(7)").await.expect("a lock");
        let reaper = tokio::spawn({
            let store = store.clone();
            async move { store.reap(ReapTarget::Records, None, 100).await.expect("it reaps") }
        });
        let waits = "select count(*) from pg_stat_activity
                     where wait_event = 'advisory' and datname = current_database()";
        while server.sql(&database, waits) == "0" {
            tokio::task::yield_now().await;
        }
        if restarted {
            second = put(&*store, &next_generation(&second, true)).await.record;
        }
        let done = put(&*store, &finish(&second)).await.record;
        let note = done.note.clone();
        let gone = Draft { purge_in: Some(Duration::ZERO), note, ..draft(&name_of(&done), State::Completed) };
        put(&*store, &replace(&done, gone)).await;
        // As if the clock had been set back meanwhile: the record is removable at once.
        pass(&server, &database, SECOND);
        holder.batch_execute("select pg_advisory_unlock(7)").await.expect("the lock is given back");
        assert_eq!(reaper.await.expect("it ends").removed, 0, "restarted: {restarted}");
        assert_eq!(count_bodies(&server, &database), "1");
        server.sql(&database, "drop view ibid_effect; alter table ibid_effect_rows rename to ibid_effect");
        assert_eq!(reap_all(&*store, ReapTarget::Records).await.removed, 1, "restarted: {restarted}");
        assert!(load(&*store, second.id).await.is_none());
        assert_eq!(count_bodies(&server, &database), "0", "no body is left");
    }
}
