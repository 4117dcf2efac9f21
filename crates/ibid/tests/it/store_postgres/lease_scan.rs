//! Records whose first lease has lapsed: the scan misses none, whether locked or many, and whatever the clock did.

use std::collections::HashSet;

use ibid_core::policy::Policy;
use ibid_core::reap::ReapTarget;
use ibid_core::scope::RecordId;
use ibid_testkit::contract::{SHORT, fresh_under, reap_all};
use tokio::task::JoinSet;

use super::*;

/// Returns the due records, in the store's order.
async fn due(store: &PostgresStore) -> Vec<RecordId> {
    let page = store.due(State::InProgress, None, 100_000).await.expect("due is answered");
    page.items.into_iter().map(|stored| stored.record.id).collect()
}

/// Begins records one after the other, and makes their leases lapse.
async fn begin_lapsed(
    server: &Postgres,
    database: &str,
    store: &PostgresStore,
    count: usize,
) -> Vec<RecordId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let begin = fresh(&TestRecord::fresh(), SHORT);
        assert!(matches!(commit_patiently(store, &Arc::new(begin.clone())).await, Commit::Done(_)));
        ids.push(begin.id);
    }
    pass(server, database, SECOND);
    ids
}

fn sort_ids(ids: impl IntoIterator<Item = RecordId>) -> Vec<RecordId> {
    let mut ids: Vec<RecordId> = ids.into_iter().collect();
    ids.sort_unstable();
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_lapsed_record_is_found_once_unlocked() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let ids = begin_lapsed(&server, &database, &store, 10).await;
    let hold = async |id: &RecordId| {
        let stranger = stranger(&server, &database).await;
        stranger.batch_execute("begin").await.expect("a transaction");
        let lock = format!("select from ibid_record where id = '{id}' for update");
        stranger.execute(&lock, &[]).await.expect("the row is held");
        stranger
    };
    let [leaves, finishes] = [hold(&ids[0]).await, hold(&ids[1]).await];
    let late = || server.sql(&database, "select count(*) from ibid_late");
    // Both transactions stay open, so any answer at all means that the scan did not wait for them.
    for _ in 0..2 {
        assert_eq!(due(&store).await, ids[2..], "the others are found");
        assert_eq!(late(), "2", "those two are remembered");
    }
    let finish =
        format!("update ibid_record set state = 3, count = 2, due_at = null where id = '{}'", ids[1]);
    finishes.execute(&finish, &[]).await.expect("it is the holder's");
    finishes.batch_execute("commit").await.expect("the holder has finished");
    assert_eq!(due(&store).await, ids[2..], "what is finished is not due");
    leaves.batch_execute("rollback").await.expect("the stranger leaves");
    let due_ids = due(&store).await;
    assert_eq!((due_ids[0], &due_ids[1..]), (ids[0], &ids[2..]), "what is let go is, in its place");
    assert_eq!(late(), "0");
}

/// Two processes scan different policies, and share the list of locked records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_lease_scans_do_not_wait_for_each_other() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let ids = begin_lapsed(&server, &database, &store, 3).await;
    let [holder, looker] = [stranger(&server, &database).await, stranger(&server, &database).await];
    for one in [&holder, &looker] {
        one.batch_execute("begin").await.expect("a transaction");
    }
    let locked = ids[0];
    let lock = format!("select from ibid_record where id = '{locked}' for update");
    holder.execute(&lock, &[]).await.expect("it is held");
    assert_eq!(due(&store).await, ids[1..]);
    let deleted = looker.execute(&format!("delete from ibid_late where id = '{locked}'"), &[]).await;
    assert_eq!(deleted.expect("as one who has found it free"), 1);
    // The other scanner's transaction stays open.
    assert_eq!(due(&store).await, ids[1..]);
    for one in [looker, holder] {
        one.batch_execute("rollback").await.expect("it was for nothing");
    }
    assert_eq!(due(&store).await, ids);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_lease_scans_miss_nothing() {
    let server = Postgres::shared();
    let database = server.create_database();
    let begins = open(&server, &database).await;
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(open(&server, &database).await);
    }
    let writer = tokio::spawn(async move {
        let mut ids = HashSet::new();
        for _ in 0..40 {
            let few: Vec<Change> = (0..10).map(|_| fresh(&TestRecord::fresh(), SHORT)).collect();
            ids.extend(few.iter().map(|begin| begin.id));
            commit_all(&*begins, few).await;
        }
        ids
    });
    // Each scanner runs until it has seen all of them.
    let (sender, all) = tokio::sync::watch::channel(None);
    let mut lookers = JoinSet::new();
    for store in stores {
        let all = all.clone();
        lookers.spawn(async move {
            let mut due_ids = HashSet::new();
            loop {
                due_ids.extend(due(&store).await);
                if all.borrow().as_ref() == Some(&due_ids) {
                    return;
                }
            }
        });
    }
    sender.send_replace(Some(writer.await.expect("the writer ends")));
    let ended = tokio::time::timeout(PATIENCE, lookers.join_all()).await;
    assert!(ended.is_ok(), "one of them is never found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_lapsed_records_than_one_step_takes_are_all_found() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let first = begin_lapsed(&server, &database, &store, 1).await[0];
    // Copies of it: most at one instant, more than one statement takes; some before it and some after it.
    let copies = "create temp table copy as select r.*, n from ibid_record r, generate_series(1, 7000) n;
                  update copy set id = md5(n::text)::uuid;
                  update copy set due_at = due_at - 1000 + n, reap_at = reap_at - 1000 + n where n <= 500;
                  update copy set due_at = due_at + n - 6500, reap_at = reap_at + n - 6500 where n > 6500;
                  alter table copy drop column n;
                  insert into ibid_record select * from copy";
    server.sql(&database, copies);
    pass(&server, &database, SECOND);
    let due_ids = due(&store).await;
    assert_eq!(due_ids.len(), 7001);
    assert!(due_ids.contains(&first));
    assert_eq!(due_ids.iter().collect::<HashSet<_>>().len(), 7001, "each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_committed_behind_the_cursor_is_still_found() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let stranger = stranger(&server, &database).await;
    // On a machine that stalls for ten seconds the scan may miss one permanently; not three in a row.
    for _ in 0..3 {
        let template = begin_lapsed(&server, &database, &store, 1).await[0];
        stranger.batch_execute("begin").await.expect("a transaction");
        let copy = format!(
            "insert into ibid_record (id, birth, created_at, policy, reap_at, ran_at, flags, tenant, method, path, key,
                                      nonce, due_at, count, state)
             select md5(id::text)::uuid, birth, created_at, policy, reap_at, ran_at, flags, tenant, method, path, key,
                    nonce, due_at, count, state
             from ibid_record where id = '{template}' returning uuid_send(id), due_at"
        );
        let row = stranger.query_one(&copy, &[]).await.expect("it is not visible yet");
        let (id, ended): (Vec<u8>, i64) = (row.get(0), row.get(1));
        let late = RecordId::from_bytes(id.try_into().expect("an id"));
        let after = begin_lapsed(&server, &database, &store, 1).await[0];
        let due_ids = due(&store).await;
        assert!(due_ids.contains(&after) && !due_ids.contains(&late), "its instant was passed");
        stranger.batch_execute("commit").await.expect("it is committed");
        let due_ids = due(&store).await;
        if due_ids.contains(&late) {
            return;
        }
        let cursor: i64 = server.sql(&database, "select at from ibid_walk").parse().expect("a number");
        assert!(cursor >= ended, "a begin that was committed late is never found");
    }
    panic!("begins that were committed late were missed permanently");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_was_set_back_hides_nothing() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let before = begin_lapsed(&server, &database, &store, 2).await;
    assert_eq!(due(&store).await, before);
    // As when the clock is set back by an hour.
    server.sql(&database, "update ibid_walk set at = at + 3600000000");
    let after = begin_lapsed(&server, &database, &store, 2).await;
    assert_eq!(due(&store).await, [before, after].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_renewed_in_time_is_never_reported_as_lapsed() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let begins: Vec<Change> = (0..20).map(|_| fresh(&TestRecord::fresh(), SHORT)).collect();
    let fates = commit_all(&*store, begins.clone()).await;
    let record = |begin: &Change| match &fates[&begin.id] {
        Commit::Done(stamp) => begin.apply(*stamp, None).expect("it writes"),
        other => panic!("a fresh name is free: {other:?}"),
    };
    let records: Vec<Arc<Record>> = begins.iter().map(record).collect();
    commit_all(&*store, records[..10].iter().map(|record| finish(record)).collect()).await;
    pass(&server, &database, SECOND);
    assert_eq!(sort_ids(due(&store).await), sort_ids(records[10..].iter().map(|record| record.id)));
    let watched =
        "select count(*), count(*) filter (where state = 3) from ibid_record where watch_at is not null";
    assert_eq!(server.sql(&database, watched), "10|0");
    assert_eq!(server.sql(&database, "select count(*) from ibid_late"), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lapsed_record_is_found_under_any_retention() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let day = Duration::from_secs(24 * 3600);
    let lapses = [day, 30 * day, Duration::ZERO, Duration::MAX].map(|retention| {
        let policy = Policy::default().with(|policy| {
            policy.lease = SHORT;
            policy.retention = retention;
        });
        fresh_under(&TestRecord::fresh(), &Arc::new(policy))
    });
    // Its lease is still running when the reaper's instant has come.
    let policy = Policy::default().with(|policy| {
        policy.lease = LONG;
        policy.retention = SHORT;
    });
    let runs = fresh_under(&TestRecord::fresh(), &Arc::new(policy));
    commit_all(&*store, lapses.iter().chain([&runs]).cloned().collect()).await;
    pass(&server, &database, SECOND);
    assert_eq!(sort_ids(due(&store).await), sort_ids(lapses.iter().map(|begin| begin.id)));
    reap_all(&*store, ReapTarget::Records).await;
    pass(&server, &database, 2 * LONG);
    let all = sort_ids(lapses.iter().chain([&runs]).map(|begin| begin.id));
    assert_eq!(sort_ids(due(&store).await), all, "also what the reaper put off in its first lease");
}

/// Records of another policy have the same instants in the reaper's order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_with_equal_instants_are_scanned_separately() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let under = |lease, retention| {
        Arc::new(Policy::default().with(|policy| {
            policy.lease = lease;
            policy.retention = retention;
        }))
    };
    let policies = [under(SHORT, LONG), under(LONG, LONG), under(SHORT, 2 * LONG), under(LONG, 2 * LONG)];
    let begins: Vec<Change> =
        (0..40).map(|index| fresh_under(&TestRecord::fresh(), &policies[index % policies.len()])).collect();
    commit_all(&*store, begins.clone()).await;
    pass(&server, &database, SECOND);
    let short = begins.iter().enumerate().filter(|(index, _)| index % 2 == 0).map(|(_, begin)| begin.id);
    assert_eq!(sort_ids(due(&store).await), sort_ids(short));
    pass(&server, &database, LONG);
    assert_eq!(sort_ids(due(&store).await), sort_ids(begins.iter().map(|begin| begin.id)));
}

/// Its scan takes more than one round, and starts where the other policies have long been.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_far_behind_delays_no_other() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let under = |lease| {
        let policy =
            Policy::default().with(|policy| (policy.lease, policy.retention) = (lease, 9 * LONG + lease));
        fresh_under(&TestRecord::fresh(), &Arc::new(policy))
    };
    let rare = under(LONG);
    commit_all(&*store, vec![rare]).await;
    assert_eq!(due(&store).await.len(), 0, "it has a position now");
    // 400 hours are more than a round scans.
    server.sql(&database, "update ibid_walk set at = at - 400 * 3600000000");
    let busy = under(SHORT);
    commit_all(&*store, vec![busy.clone()]).await;
    assert_eq!(server.sql(&database, "select count(distinct ahead_us) from ibid_policy"), "1");
    pass(&server, &database, SECOND);
    assert_eq!(due(&store).await, [busy.id]);
}

/// Policies with one distance between lease and retention are scanned together, each from its own position.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_another_process_scans_is_left_to_it() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let [one, other] = [LONG, 2 * LONG].map(|lease| {
        let policy =
            Policy::default().with(|policy| (policy.lease, policy.retention) = (lease, 9 * LONG + lease));
        fresh_under(&TestRecord::fresh(), &Arc::new(policy))
    });
    commit_all(&*store, vec![one.clone(), other.clone()]).await;
    assert_eq!(server.sql(&database, "select count(distinct ahead_us) from ibid_policy"), "1");
    assert_eq!(due(&store).await.len(), 0, "each has a position now");
    pass(&server, &database, 3 * LONG);
    let scanner = stranger(&server, &database).await;
    let lock = format!(
        "begin; select from ibid_walk where policy = (select policy from ibid_record where id = '{}') for update",
        other.id
    );
    scanner.batch_execute(&lock).await.expect("a position is held");
    assert_eq!(due(&store).await, [one.id]);
    scanner.batch_execute("rollback").await.expect("the other process has gone");
    assert_eq!(sort_ids(due(&store).await), sort_ids([one.id, other.id]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn known_due_records_are_found_even_if_the_scan_fails() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let ids = begin_lapsed(&server, &database, &store, 2).await;
    assert_eq!(due(&store).await, ids);
    server.sql(&database, "alter table ibid_late rename to ibid_late_away");
    assert_eq!(due(&store).await, ids);
    server.sql(&database, "delete from ibid_record");
    store.due(State::InProgress, None, 10).await.expect_err("a failed scan must not say that nothing is due");
}

/// The cursor is missing after a restore of only some tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_cursor_the_scan_starts_at_the_first_record() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let before = begin_lapsed(&server, &database, &store, 2).await;
    pass(&server, &database, LONG);
    server.sql(&database, "delete from ibid_walk");
    let after = begin_lapsed(&server, &database, &store, 2).await;
    assert_eq!(due(&store).await, [before, after].concat());
}

/// Far above what a loaded two-core machine needs: only a missed record reaches it.
const PATIENCE: Duration = Duration::from_secs(60);
