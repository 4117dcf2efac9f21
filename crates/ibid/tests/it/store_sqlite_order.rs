//! The SQLite store's own orders: how new rows are ordered for upkeep, how the reaper finds them, and what shares a commit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{join_all, join3};
use ibid::store::sqlite::CommitCounts;
use ibid_core::change::{Change, Commit, Draft};
use ibid_core::evidence::{EventName, Evidence, EvidenceStore, EvidenceSubject};
use ibid_core::machine::Observation;
use ibid_core::policy::Policy;
use ibid_core::reap::ReapTarget;
use ibid_core::record::{Flags, State};
use ibid_core::store::{RecordFilter, RenewOutcome, RowCount, SetOutcome, Store};
use ibid_testkit::contract::{
    LONG, TICK, TestRecord, answering, browse, commit_all, draft, due, finish_with, fresh, insert, load, put,
    reap_all, replace,
};

use crate::store_sqlite::{Sqlite, sql, sqlite};

fn number(subject: &Sqlite, sql: &str) -> i64 {
    subject.file.other_connection().query_row(sql, [], |row| row.get(0)).expect("one number")
}

/// Begins and finishes a record that goes `kept` after its finish.
async fn put_completed(subject: &Sqlite, kept: Duration) -> TestRecord {
    let name = TestRecord::fresh();
    let begin = put(&*subject.store, &fresh(&name, LONG)).await;
    let draft = Draft { expires_in: Some(kept), purge_in: Some(kept), ..draft(&name, State::Completed) };
    put(&*subject.store, &replace(&begin.record, draft)).await;
    name
}

#[tokio::test]
async fn a_plain_key_enters_no_index_but_the_ids() {
    let subject = sqlite();
    put_completed(&subject, LONG).await;
    let rows = "select count(*) from ibid_record where watch_at is not null or reap_at is not null";
    assert_eq!(number(&subject, rows), 0);
    assert!(due(&*subject.store, State::InProgress, 10).await.is_empty());
    assert_eq!(
        number(&subject, "select count(*) from ibid_reap_range"),
        1,
        "the reaper finds it by its range"
    );
    assert_eq!(number(&subject, rows), 0);
}

#[tokio::test]
async fn a_first_lease_is_found_by_the_ordering_and_once() {
    let subject = sqlite();
    let name = TestRecord::fresh();
    put(&*subject.store, &fresh(&name, TICK)).await;
    put_completed(&subject, LONG).await;
    assert!(due(&*subject.store, State::InProgress, 10).await.is_empty(), "it is not due yet");
    subject.hands.advance(TICK);
    let lapsed = due(&*subject.store, State::InProgress, 10).await;
    assert_eq!(lapsed.iter().map(|stored| stored.record.id).collect::<Vec<_>>(), [name.id]);
}

#[tokio::test]
async fn a_reused_row_number_is_ordered_again() {
    let subject = sqlite();
    put_completed(&subject, Duration::ZERO).await;
    subject.hands.advance(TICK);
    assert_eq!(reap_all(&*subject.store, ReapTarget::Records).await.removed, 1);
    let name = TestRecord::fresh();
    put(&*subject.store, &fresh(&name, TICK)).await;
    assert_eq!(number(&subject, "select row from ibid_record"), 1, "SQLite gives the number again");
    subject.hands.advance(TICK);
    assert_eq!(due(&*subject.store, State::InProgress, 10).await.len(), 1);
}

#[tokio::test]
async fn a_record_that_outlives_its_ordering_is_reaped() {
    let subject = sqlite();
    let name = TestRecord::fresh();
    let begin = put(&*subject.store, &fresh(&name, LONG)).await;
    assert!(due(&*subject.store, State::InProgress, 10).await.is_empty(), "now it is ordered");
    let finish = replace(&begin.record, Draft { purge_in: Some(TICK), ..draft(&name, State::Completed) });
    put(&*subject.store, &finish).await;
    subject.hands.advance(TICK);
    assert_eq!(reap_all(&*subject.store, ReapTarget::Records).await.removed, 1);
}

#[tokio::test]
async fn a_range_is_visited_again_for_tombstones_and_later_rows() {
    let subject = sqlite();
    let name = TestRecord::fresh();
    let begin = put(&*subject.store, &fresh(&name, LONG)).await;
    let finish = Draft { expires_in: Some(TICK), purge_in: Some(3 * TICK), ..draft(&name, State::Completed) };
    put(&*subject.store, &replace(&begin.record, finish)).await;
    put_completed(&subject, 2 * TICK).await;
    subject.hands.advance(TICK);
    let first = reap_all(&*subject.store, ReapTarget::Records).await;
    assert_eq!((first.stripped, first.removed), (1, 0));
    assert!(load(&*subject.store, name.id).await.is_some_and(|stored| stored.record.identity.is_forgotten()));
    for removed in [1, 1, 0] {
        subject.hands.advance(TICK);
        let step = reap_all(&*subject.store, ReapTarget::Records).await;
        assert_eq!((step.stripped, step.removed), (0, removed));
    }
    assert_eq!(number(&subject, "select count(*) from ibid_reap_range"), 0, "an empty range goes");
}

#[tokio::test]
async fn a_backlog_of_ranges_does_not_hold_up_the_index() {
    const LIMIT: u32 = 8;
    let subject = sqlite();
    let store = &*subject.store;
    let mut late = Vec::new();
    for _ in 0..5 {
        let name = TestRecord::fresh();
        let begin = put(store, &fresh(&name, LONG)).await;
        late.push((name, begin));
    }
    assert!(due(store, State::InProgress, 10).await.is_empty(), "now they are ordered");
    for (name, begin) in &late {
        let purged = Draft { purge_in: Some(Duration::ZERO), ..draft(name, State::Completed) };
        put(store, &replace(&begin.record, purged)).await;
    }
    let put_due = async |count: u32| {
        let due = (0..count).map(|_| {
            let name = TestRecord::fresh();
            insert(&name, Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) })
        });
        commit_all(store, due.collect()).await;
        subject.hands.advance(TICK);
    };
    put_due(3 * LIMIT).await;
    let mut cursor = None;
    for step in 1..=3 {
        let reaped = store.reap(ReapTarget::Records, cursor, LIMIT).await.expect("a step");
        assert_eq!(reaped.removed, u64::from(LIMIT), "what the index leaves, ranges have");
        let stay =
            join_all(late.iter().map(|(name, _)| load(store, name.id))).await.into_iter().flatten().count();
        assert_eq!(stay, 5_usize.saturating_sub(2 * step), "a quarter of each step is the index's");
        cursor = reaped.next;
        assert!(cursor.is_some(), "ranges are due");
        put_due(LIMIT).await;
    }
}

#[tokio::test]
async fn a_row_of_the_index_that_had_to_stay_goes_under_load() {
    const LIMIT: u32 = 8;
    let subject = sqlite();
    let store = &*subject.store;
    let name = TestRecord::fresh();
    let begin = put(store, &fresh(&name, LONG)).await;
    assert!(due(store, State::InProgress, 10).await.is_empty(), "now it is ordered");
    let purged = Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) };
    put(store, &replace(&begin.record, purged)).await;
    let path = subject.file.path();
    let holding = "create table payment (record blob references ibid_record(id));
                   create index payment_record on payment (record);
                   insert into payment select id from ibid_record";
    sql(&path, holding);
    let going = |_| {
        let name = TestRecord::fresh();
        insert(&name, Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) })
    };
    commit_all(store, (0..8 * LIMIT).map(going).collect()).await;
    subject.hands.advance(TICK);
    let step = async |cursor| store.reap(ReapTarget::Records, cursor, LIMIT).await.expect("a step");
    let first = step(None).await;
    assert_eq!((first.held, first.removed), (1, u64::from(LIMIT)));
    sql(&path, "delete from payment");
    let second = step(first.next).await;
    assert_eq!((second.held, second.removed), (0, u64::from(LIMIT)));
    assert!(load(store, name.id).await.is_some(), "the position is behind it");
    subject.hands.advance(Duration::from_secs(60));
    let third = step(second.next).await;
    step(third.next).await;
    assert!(load(store, name.id).await.is_none(), "a new pass has come to it");
}

#[tokio::test]
async fn a_dead_letter_stays_and_its_range_is_done() {
    let subject = sqlite();
    let name = TestRecord::fresh();
    let begin = put(&*subject.store, &fresh(&name, LONG)).await;
    let flags = Flags { dead_letter: true, ..Flags::default() };
    let letter = Draft { flags, purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) };
    put(&*subject.store, &replace(&begin.record, letter)).await;
    put_completed(&subject, Duration::ZERO).await;
    subject.hands.advance(TICK);
    let step = subject.store.reap(ReapTarget::Records, None, 100).await.expect("a step");
    assert_eq!((step.removed, step.next, step.behind), (1, None, Some(TICK)));
    assert_eq!(number(&subject, "select count(*) from ibid_reap_range"), 0);
    let filter = RecordFilter::default().with(|filter| filter.dead_letter = true);
    let letters = browse(&*subject.store).list(filter).await.expect("a list").items;
    assert_eq!(letters.iter().map(|stored| stored.record.id).collect::<Vec<_>>(), [name.id]);
}

#[tokio::test]
async fn all_records_of_a_small_table_are_counted() {
    let subject = sqlite();
    for _ in 0..3 {
        put_completed(&subject, LONG).await;
    }
    for state in [State::InProgress, State::Unknown, State::Unknown, State::Pending, State::Retryable] {
        let name = TestRecord::fresh();
        put(&*subject.store, &insert(&name, Draft { due_in: None, ..draft(&name, state) })).await;
    }
    let counts = browse(&*subject.store).count().await.expect("counts");
    let [pending, running, completed, retryable, unknown] = counts.by_state;
    assert_eq!([pending, running, retryable, unknown], [1, 1, 1, 2].map(RowCount::Exact));
    assert_eq!(completed, RowCount::Exact(3), "of a larger table it is an estimate");
    assert_eq!(counts.dead_letters, RowCount::Exact(0));
    assert!(counts.oldest_unknown.is_some());
}

#[tokio::test]
async fn completed_records_of_a_large_table_are_estimated() {
    let subject = sqlite();
    let store = &*subject.store;
    let open = TestRecord::fresh();
    put(store, &fresh(&open, LONG)).await;
    put_completed(&subject, LONG).await;
    // As asynchronous requests leave them: written three times, so the reaper finds half of them by its index.
    let more = "with recursive n (n) as (select 1 union all select n + 1 from n where n < 12000)
        insert into ibid_record (id, count, nonce, birth, state, flags, policy, created_at, expires_at, purge_at, reap_at,
                                 tenant, method, path, key)
        select randomblob(16), 3, 1, 1, r.state, r.flags, r.policy, r.created_at, r.created_at, r.created_at,
               iif(n % 2 = 0, r.created_at, null), r.tenant, r.method, r.path, n
        from n, ibid_record r where r.completed_at is not null or r.state = 3";
    sql(&subject.file.path(), more);
    let completed = async || {
        let counts = browse(store).count().await.expect("counts");
        assert_eq!(counts.by_state[1], RowCount::Exact(1));
        counts.by_state[2]
    };
    assert_eq!(completed().await, RowCount::Estimated(12_001));
    subject.hands.advance(TICK);
    let step = store.reap(ReapTarget::Records, None, 1500).await.expect("a step");
    assert_eq!((step.removed, completed().await), (1500, RowCount::Estimated(10_501)));
    assert_eq!(reap_all(store, ReapTarget::Records).await.removed, 10_500);
    assert_eq!(completed().await, RowCount::Exact(1));
    assert_eq!(number(&subject, "select rows from ibid_ordered"), 2);
}

#[tokio::test]
async fn every_list_pages_to_its_end() {
    let subject = sqlite();
    let names: Vec<TestRecord> = (0..25).map(|_| TestRecord::fresh()).collect();
    let unknown = |name: &TestRecord| {
        let flags = Flags { dead_letter: true, ..Flags::default() };
        insert(name, Draft { flags, due_in: None, ..draft(name, State::Unknown) })
    };
    commit_all(&*subject.store, names.iter().map(unknown).collect()).await;
    put_completed(&subject, LONG).await;
    let by_state = RecordFilter::default().with(|filter| filter.state = Some(State::Unknown));
    let letters = RecordFilter::default().with(|filter| filter.dead_letter = true);
    let tenant = names[0].identity.tenant.as_str().to_owned();
    let by_tenant = RecordFilter::default().with(|filter| {
        filter.tenant = Some(tenant);
        filter.method = Some("POST".to_owned());
    });
    for (filter, expected) in [(by_state, 25), (letters, 25), (by_tenant, 26)] {
        let mut ids = std::collections::BTreeSet::new();
        let mut filter = filter.with(|filter| filter.limit = 7);
        loop {
            let page = browse(&*subject.store).list(filter.clone()).await.expect("a page");
            assert!(page.items.len() <= 7);
            ids.extend(page.items.iter().map(|stored| stored.record.id));
            if page.next.is_none() {
                break;
            }
            filter.after = page.next;
        }
        assert_eq!(ids.len(), expected);
    }
}

#[tokio::test]
async fn a_policy_goes_when_no_record_can_name_it() {
    let subject = sqlite();
    let store = &*subject.store;
    let policy = Policy::default().with(|policy| {
        policy.retention = TICK;
        policy.tombstone = Duration::ZERO;
    });
    let policy = Arc::new(policy);
    let (open, done) = (TestRecord::fresh(), TestRecord::fresh());
    let under = |draft: Draft| Draft { policy: policy.clone(), ..draft };
    let begin =
        put(store, &insert(&open, under(Draft { due_in: Some(LONG), ..draft(&open, State::InProgress) })))
            .await;
    let going = Draft { purge_in: Some(TICK), ..draft(&done, State::Completed) };
    put(store, &insert(&done, under(going))).await;
    subject.hands.advance(Duration::from_secs(30 * 24 * 3600));
    reap_all(store, ReapTarget::Records).await;
    assert_eq!(reap_all(store, ReapTarget::Policies).await.removed, 0, "an open record names it");
    let purged = under(Draft { purge_in: Some(Duration::ZERO), ..draft(&open, State::Completed) });
    put(store, &replace(&begin.record, purged)).await;
    subject.hands.advance(Duration::from_secs(30 * 24 * 3600));
    assert_eq!(
        browse(store).count_reapable(ReapTarget::Policies).await.expect("a count").remove,
        0,
        "not yet reaped"
    );
    reap_all(store, ReapTarget::Records).await;
    assert_eq!(reap_all(store, ReapTarget::Policies).await.removed, 1);
    // The writer still has its number, and looks it up again.
    let again = TestRecord::fresh();
    put(store, &insert(&again, under(draft(&again, State::InProgress)))).await;
    assert!(load(store, again.id).await.is_some(), "its policy is stored again");
}

#[tokio::test]
async fn a_policy_goes_although_ranges_are_due() {
    let subject = sqlite();
    let store = &*subject.store;
    let policy = Policy::default().with(|policy| {
        policy.retention = TICK;
        policy.tombstone = Duration::ZERO;
    });
    let name = TestRecord::fresh();
    let going = Draft { purge_in: Some(TICK), policy: Arc::new(policy), ..draft(&name, State::Completed) };
    put(store, &insert(&name, going)).await;
    subject.hands.advance(Duration::from_secs(30 * 24 * 3600));
    assert_eq!(reap_all(store, ReapTarget::Policies).await.removed, 0, "a range may have a record under it");
    reap_all(store, ReapTarget::Records).await;
    put_completed(&subject, Duration::ZERO).await;
    subject.hands.advance(TICK);
    assert!(due(store, State::InProgress, 1).await.is_empty(), "now it is ordered");
    assert_eq!(number(&subject, "select count(*) from ibid_reap_range"), 1, "a range is due");
    let count = browse(store).count_reapable(ReapTarget::Policies).await.expect("a count");
    assert_eq!(count.remove, 1);
    assert_eq!(reap_all(store, ReapTarget::Policies).await.removed, 1);
}

#[tokio::test]
async fn no_policy_goes_while_too_many_records_are_open() {
    let subject = sqlite();
    let store = &*subject.store;
    let policy = Policy::default().with(|policy| {
        policy.retention = TICK;
        policy.tombstone = Duration::ZERO;
    });
    let name = TestRecord::fresh();
    let going = Draft { purge_in: Some(TICK), policy: Arc::new(policy), ..draft(&name, State::Completed) };
    put(store, &insert(&name, going)).await;
    put(store, &fresh(&TestRecord::fresh(), LONG)).await;
    subject.hands.advance(Duration::from_secs(30 * 24 * 3600));
    reap_all(store, ReapTarget::Records).await;
    // More than a step may read, so one behind them may name any policy.
    let more = "with recursive n (n) as (select 1 union all select n + 1 from n where n < 10000)
        insert into ibid_record (id, count, nonce, birth, state, flags, policy, created_at, due_at, watch_at,
                                 tenant, method, path, key)
        select randomblob(16), 2, 1, 1, r.state, r.flags, r.policy, r.created_at, r.due_at, r.due_at,
               r.tenant, r.method, r.path, n
        from n, ibid_record r";
    sql(&subject.file.path(), more);
    assert_eq!(reap_all(store, ReapTarget::Policies).await.removed, 0);
    sql(&subject.file.path(), "delete from ibid_record where count = 2 and key = '7'");
    sql(&subject.file.path(), "delete from ibid_record where count = 2 and key = '8'");
    assert_eq!(reap_all(store, ReapTarget::Policies).await.removed, 1, "now it reads all of them");
}

#[tokio::test]
async fn a_change_past_its_deadline_is_not_sent() {
    let subject = sqlite();
    let name = TestRecord::fresh();
    let begin = Arc::new(insert(&name, draft(&name, State::InProgress)));
    let late = Instant::now().checked_sub(Duration::from_millis(1));
    let error = subject.store.commit(begin, late).await.expect_err("its client has given up");
    assert!(error.is_transient() && error.is_unwritten());
    assert!(load(&*subject.store, name.id).await.is_none());
}

#[tokio::test]
async fn an_unreadable_record_is_one_changes_own_failure() {
    let subject = sqlite();
    let store = &*subject.store;
    let names: Vec<TestRecord> = (0..20).map(|_| TestRecord::fresh()).collect();
    put(store, &insert(&names[7], draft(&names[7], State::InProgress))).await;
    sql(&subject.file.path(), "update ibid_record set policy = 99");
    let begins = names.iter().map(|name| Arc::new(insert(name, draft(name, State::InProgress))));
    let outcomes = join_all(begins.map(|begin| store.commit(begin, None))).await;
    for (at, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(Commit::Done(_)) => assert_ne!(at, 7),
            Err(error) => assert!(at == 7 && !error.is_transient() && error.is_unwritten()),
            Ok(Commit::Conflict(_)) => panic!("it can't be read"),
        }
    }
}

#[tokio::test]
async fn renewals_share_the_commits_of_changes() {
    let subject = sqlite();
    let store = &*subject.store;
    let names: Vec<TestRecord> = (0..50).map(|_| TestRecord::fresh()).collect();
    let begins: Vec<Change> = names.iter().map(|name| fresh(name, LONG)).collect();
    let versions: Vec<_> = begins.iter().map(|begin| (begin.id, begin.version())).collect();
    commit_all(store, begins).await;
    let more: Vec<Change> = (0..50).map(|_| fresh(&TestRecord::fresh(), LONG)).collect();
    let renewals = join_all(versions.iter().map(|lease| store.renew(vec![*lease])));
    let work = async { tokio::join!(renewals, commit_all(store, more)) };
    let ((renewed, _), counts) = queued_together(&subject, work).await;
    for outcome in renewed {
        assert!(matches!(outcome.expect("renewed")[..], [RenewOutcome::Until(_)]));
    }
    assert_eq!((counts.changes, counts.renewals), (50, 50));
    assert!(counts.commits <= 3, "{counts:?}");
}

#[tokio::test]
async fn a_flood_of_webhooks_shares_few_commits() {
    let subject = sqlite();
    let store = &*subject.store;
    let event = |number: u32| Evidence {
        name: EventName { source: "psp".into(), event: number.to_string() },
        about: EvidenceSubject::Record(TestRecord::fresh().id),
        owner: None,
        what: Observation::NotExecuted,
        age: Duration::ZERO,
    };
    let webhooks = join_all((0..2000).map(|number| store.insert_evidence(event(number), LONG)));
    let setting = store.compare_and_set("election", None, Bytes::from_static(b"node"));
    let step = store.reap(ReapTarget::Records, None, 100);
    let work = async { tokio::join!(webhooks, setting, step) };
    let ((stored, set, stepped), counts) = queued_together(&subject, work).await;
    assert!(stored.into_iter().all(|stored| stored.expect("it is stored").1));
    assert_eq!((set.expect("it is set"), stepped.expect("a step").removed), (SetOutcome::Won, 0));
    assert!(counts.commits <= 20, "{counts:?}");
}

#[tokio::test]
async fn a_step_that_shrinks_the_file_is_short() {
    let subject = sqlite();
    let store = &*subject.store;
    let going = (0..800).map(|_| {
        let name = TestRecord::fresh();
        let going = Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) };
        let response = ibid_testkit::contract::response(vec![7; 16 << 10]);
        Change { response: Some(response), ..answering(insert(&name, going), b"") }
    });
    commit_all(store, going.collect()).await;
    subject.hands.advance(TICK);
    assert_eq!(reap_all(store, ReapTarget::Records).await.removed, 800);
    let free = number(&subject, "select freelist_count from pragma_freelist_count");
    assert!(free > 3000, "{free}");
    let shrink = || store.reap(ReapTarget::Room, None, u32::MAX);
    let alone = shrink().await.expect("a step");
    assert!((1..=512).contains(&alone.removed) && alone.next.is_some(), "{alone:?}");
    // Between two changes it shares a transaction with one of them, whenever the writer looks into its queue. It returns fewer
    // pages then, because the change waits for them.
    let begin = || store.commit(Arc::new(fresh(&TestRecord::fresh(), LONG)), None);
    let ((first, shared, second), _) = queued_together(&subject, join3(begin(), shrink(), begin())).await;
    assert!(matches!((first, second), (Ok(Commit::Done(_)), Ok(Commit::Done(_)))));
    let shared = shared.expect("a step");
    assert!((1..=64).contains(&shared.removed) && shared.next.is_some(), "{shared:?}");
}

#[tokio::test]
async fn a_chore_that_fails_fails_alone() {
    let subject = sqlite();
    let store = &*subject.store;
    let poison = "create trigger poison before insert on ibid_meta when new.name = 'poison'
                  begin select raise(abort, 'poison'); end";
    sql(&subject.file.path(), poison);
    let name = TestRecord::fresh();
    let set = |name| store.compare_and_set(name, None, Bytes::from_static(b"1"));
    let begin = store.commit(Arc::new(fresh(&name, LONG)), None);
    let work = async { tokio::join!(set("first"), set("poison"), set("last"), begin) };
    let ((first, poisoned, last, begun), _) = queued_together(&subject, work).await;
    let error = poisoned.expect_err("it cannot be stored");
    assert!(error.is_unwritten() && !error.is_transient(), "{error:?}");
    assert_eq!((first.expect("it is set"), last.expect("it is set")), (SetOutcome::Won, SetOutcome::Won));
    assert!(matches!(begun, Ok(Commit::Done(_))));

    // The table of another chore is gone: all of that kind fail, and nothing else does.
    sql(
        &subject.file.path(),
        "alter table ibid_event rename to lost; alter table ibid_meta rename to lost_too",
    );
    let name = TestRecord::fresh();
    let begin = store.commit(Arc::new(fresh(&name, LONG)), None);
    let history = store.reap(ReapTarget::History { keep: TICK }, None, 10);
    let work = async { tokio::join!(set("third"), history, begin) };
    let ((third, reaped, begun), _) = queued_together(&subject, work).await;
    assert!(third.is_err_and(|error| error.is_unwritten()));
    assert!(reaped.is_err_and(|error| error.is_unwritten()));
    assert!(matches!(begun, Ok(Commit::Done(_))));
}

/// Lets all of `work` queue while another process holds the write lock, then does it. Returns what was committed for it.
async fn queued_together<T>(subject: &Sqlite, work: impl Future<Output = T>) -> (T, CommitCounts) {
    let blocked = subject.file.other_connection();
    blocked.execute_batch("begin immediate").expect("the lock is free");
    let before = subject.store.commit_counts();
    let mut work = std::pin::pin!(work);
    // The first poll queues every job.
    assert!(futures_util::poll!(&mut work).is_pending());
    blocked.execute_batch("rollback").expect("the lock is given back");
    let done = work.await;
    let mut counts = subject.store.commit_counts();
    counts.commits -= before.commits;
    counts.changes -= before.changes;
    counts.renewals -= before.renewals;
    (done, counts)
}

#[tokio::test]
async fn the_view_shows_names_and_readable_instants() {
    let subject = sqlite();
    let name = TestRecord::fresh();
    let begin = put(&*subject.store, &fresh(&name, LONG)).await;
    put(&*subject.store, &finish_with(&begin.record, b"{}")).await;
    let view = "select id, state, flags, attempt, created_at, header_lines, body_bytes from ibid_records";
    let row = subject.file.other_connection().query_row(view, [], |row| {
        let texts = (row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?);
        Ok((texts, row.get::<_, i64>(3)?, row.get::<_, String>(4)?, row.get::<_, i64>(6)?))
    });
    let ((id, state, flags), attempt, created_at, body_bytes) = row.expect("a row");
    assert_eq!((id, state.as_str(), flags.as_str()), (name.id.to_string(), "completed", ""));
    assert_eq!((attempt, created_at.as_str(), body_bytes), (1, "2027-01-15 08:00:00.000", 2));
}

#[tokio::test]
async fn a_large_response_is_stored_apart_and_loaded_with_its_record() {
    let subject = sqlite();
    let name = TestRecord::fresh();
    let large = ibid_testkit::contract::response(vec![7_u8; 5000]);
    let begin = answering(insert(&name, draft(&name, State::Completed)), b"");
    let begin = Change { response: Some(large.clone()), ..begin };
    let stored = put(&*subject.store, &begin).await;
    assert_eq!(number(&subject, "select length(data) from ibid_body"), 5000);
    let loaded = load(&*subject.store, name.id).await.expect("it is stored");
    assert_eq!((loaded.body(), &loaded.record), (Some(&large.body[..]), &stored.record));
}
