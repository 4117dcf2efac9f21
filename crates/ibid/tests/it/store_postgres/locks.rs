//! Rows that another session has locked: no call waits for long, and only the change of that row fails.

use bytes::Bytes;
use ibid::operator::{Operator, OperatorError};
use ibid_core::change::{History, HistoryKind};
use ibid_core::operator_action::OperatorAction;
use ibid_core::scope::{Identity, Operation};
use ibid_core::store::{RenewOutcome, SetOutcome};
use ibid_testkit::contract::{SHORT, TICK, put, take_over};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_commits_except_for_a_contended_insert() {
    let server = Postgres::shared();
    for is_fresh in [true, false] {
        a_batch_goes_through_but_for_one(&server, is_fresh).await;
    }
}

async fn a_batch_goes_through_but_for_one(server: &Postgres, is_fresh: bool) {
    let database = server.create_database();
    let store = open(server, &database).await;
    let mut batch: Vec<Arc<Change>> = (0..32).map(|_| Arc::new(either_begin(is_fresh))).collect();
    batch.sort_by_key(|change| change.id);
    let contended = batch[11].clone();
    let stranger = stranger(server, &database).await;
    stranger.batch_execute("begin").await.expect("a transaction");
    let row = format!(
        "insert into ibid_record (id, birth, created_at, policy, reap_at, flags, tenant, method, path, key, nonce, count, state)
         values ('{}', 0, 0, 0, 0, 0, 't', 'm', 'p', 'k', 0, 1, 3)",
        contended.id
    );
    stranger.batch_execute(&row).await.expect("a row that is not visible yet");
    // The other transaction stays open, so any answer at all means that the store did not wait for its end.
    let fates = commit_each(&store, &batch).await;
    for (change, fate) in batch.iter().zip(&fates) {
        match fate {
            Ok(Commit::Done(_)) => assert_ne!(change.id, contended.id),
            Err(error) if change.id == contended.id => {
                assert!(error.is_transient(), "it may go through later")
            }
            other => panic!("a change in the same batch was not done: {other:?}"),
        }
    }
    stranger.batch_execute("rollback").await.expect("the stranger leaves");
    assert!(matches!(commit_patiently(&store, &contended).await, Commit::Done(_)), "the way is free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_row_lock_is_busy_never_lost_or_won() {
    let server = Postgres::shared();
    for is_fresh in [true, false] {
        a_held_row_is_busy(&server, is_fresh).await;
    }
}

async fn a_held_row_is_busy(server: &Postgres, is_fresh: bool) {
    let database = server.create_database();
    let store = open(server, &database).await;
    let lapsing = |name: &TestRecord| match is_fresh {
        true => fresh(name, SHORT),
        false => insert(name, Draft { due_in: Some(SHORT), ..draft(name, State::InProgress) }),
    };
    let (name, other) = (TestRecord::fresh(), TestRecord::fresh());
    let locked = put(&*store, &lapsing(&name)).await.record;
    let free = put(&*store, &lapsing(&other)).await.record;
    tokio::time::sleep(TICK).await;
    let stranger = stranger(server, &database).await;
    let lock = format!("begin; select from ibid_record where id = '{}' for update", locked.id);
    stranger.batch_execute(&lock).await.expect("the row is held");

    let renewed = store.renew(vec![(locked.id, locked.version)]).await.expect("a renewal succeeds");
    assert_eq!(renewed, [RenewOutcome::Busy], "it may still be ours");
    let take = |record: &Record| {
        let next = Draft { due_in: Some(LONG), ..draft(&name_of(record), State::InProgress) };
        Arc::new(take_over(record, next))
    };
    let mut takeovers = vec![take(&locked), take(&free)];
    takeovers.sort_by_key(|change| change.id);
    for (change, fate) in takeovers.iter().zip(commit_each(&store, &takeovers).await) {
        match fate.expect("a takeover does not wait") {
            Commit::Done(_) => assert_eq!(change.id, free.id, "what is free is taken"),
            Commit::Conflict(stands) => {
                assert_eq!(change.id, locked.id);
                assert_eq!(stands.expect("it exists").record, locked, "and what is held stands as it was");
            }
        }
    }
    let late = Arc::new(finish(&locked));
    let fate = store.commit(late.clone(), None).await;
    assert!(fate.expect_err("the row is held").is_transient(), "a finish may go through later");
    stranger.batch_execute("rollback").await.expect("the stranger leaves");
    assert!(matches!(commit_patiently(&store, &late).await, Commit::Done(_)), "the way is free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_can_not_be_stored_fails_alone() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let mut batch: Vec<Change> = (0..16).map(|_| begin()).collect();
    batch.sort_by_key(|change| change.id);
    // A PostgreSQL text cannot contain a NUL.
    batch[5].history.push(History { what: HistoryKind::Operator, detail: "\0".to_owned() });
    let draft = batch[11].draft.as_mut().expect("a begin writes");
    let operation = Operation { path: "\0".into(), ..draft.identity.operation.clone() };
    draft.identity = Arc::new(Identity { operation, ..Identity::clone(&draft.identity) });
    let batch: Vec<Arc<Change>> = batch.into_iter().map(Arc::new).collect();
    let unfit = [5, 11];
    for (index, fate) in commit_each(&store, &batch).await.into_iter().enumerate() {
        match fate {
            Ok(Commit::Done(_)) => assert!(!unfit.contains(&index)),
            Err(error) if unfit.contains(&index) => assert!(!error.is_transient(), "no repetition mends it"),
            other => panic!("a change in the same batch was not done: {other:?}"),
        }
    }
    for index in unfit {
        assert!(load(&*store, batch[index].id).await.is_none(), "nothing of it is stored");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_or_a_failed_serialization_is_tried_again() {
    let server = Postgres::shared();
    for (code, is_fresh) in [("40001", true), ("40P01", true), ("55P03", true), ("40001", false)] {
        let database = server.create_database();
        let store = open(&server, &database).await;
        // Fails once: a rollback does not reset the sequence.
        let trouble = format!(
            "create sequence troubles;
             create function trouble() returns trigger language plpgsql as $$ begin
               if nextval('troubles') = 5 then raise exception using errcode = '{code}'; end if;
               return new;
             end $$;
             create trigger trouble before insert on ibid_record for each row execute function trouble()"
        );
        server.sql(&database, &trouble);
        let fates = commit_all(&*store, (0..16).map(|_| either_begin(is_fresh)).collect()).await;
        assert!(fates.values().all(|fate| matches!(fate, Commit::Done(_))), "{code} is tried again");
        assert_eq!(server.sql(&database, "select count(*) from ibid_record"), "16");
    }
}

/// T1 has a setting locked. The election of this process gives up each of its writes, and must not leave its connections behind
/// that lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_setting_stalls_no_other_verb() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let (name, old, new) = ("upkeep:sweep", Bytes::from_static(b"old"), Bytes::from_static(b"new"));
    let written = store.compare_and_set(name, None, old.clone()).await;
    assert_eq!(written.expect("it is written"), SetOutcome::Won);
    let running = put(&*store, &begin()).await.record;
    let stranger = stranger(&server, &database).await;
    let lock = format!("begin; update ibid_meta set value = value where name = '{name}'");
    stranger.batch_execute(&lock).await.expect("the setting is held");
    let waiting = format!(
        "select count(*) from pg_stat_activity
         where datname = '{database}' and application_name = 'ibid' and wait_event_type = 'Lock'"
    );
    for _ in 0..2 {
        // As many as there are connections for short statements.
        let tries: Vec<_> = (0..4)
            .map(|_| {
                let (store, old, new) = (store.clone(), old.clone(), new.clone());
                tokio::spawn(async move { store.compare_and_set(name, Some(old), new).await })
            })
            .collect();
        while server.sql(&database, &waiting) == "0" && !tries.iter().all(|one| one.is_finished()) {
            tokio::task::yield_now().await;
        }
        tries.iter().for_each(|one| one.abort());
    }
    let others = async {
        assert!(load(&*store, running.id).await.is_some());
        let renewed = store.renew(vec![(running.id, running.version)]).await.expect("a renewal");
        assert!(matches!(renewed[..], [RenewOutcome::Until(_)]), "{renewed:?}");
        let plain = Arc::new(other_begin(&TestRecord::fresh()));
        assert!(matches!(commit_patiently(&store, &plain).await, Commit::Done(_)));
        let refused = store.compare_and_set(name, Some(old), new).await.expect_err("the setting is held");
        assert!(refused.is_transient());
    };
    // None of them waits for the end of the other transaction.
    tokio::time::timeout(30 * SECOND, others).await.expect("all of them are answered");
    stranger.batch_execute("rollback").await.expect("the stranger leaves");
}

/// A worker may hold the rows of its effects for half a minute. Operators who act on them must not take all connections that
/// renewals and loads need for as long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_on_locked_effects_stall_no_other_verb() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open_with(&server, &database, |options| options.connections_max = 4).await;
    let running = put(&*store, &begin()).await.record;
    server.sql(&database, &effects(4));
    let stranger = stranger(&server, &database).await;
    stranger.batch_execute("begin; select from ibid_effect for update").await.expect("the rows are held");
    let act = OperatorAction::new("ann", "the provider is back").expect("a name and a reason");
    let operator = Operator::on_store(store.clone());
    let refused = async {
        let acts = join_all((1..=4).map(|seq| operator.discard(seq, &act)));
        let others = async {
            assert!(load(&*store, running.id).await.is_some());
            let renewed = store.renew(vec![(running.id, running.version)]).await.expect("a renewal");
            assert!(matches!(renewed[..], [RenewOutcome::Until(_)]), "{renewed:?}");
        };
        tokio::join!(acts, others).0
    };
    // The other transaction stays open, so an end means that none of them waited for it.
    let refused = tokio::time::timeout(30 * SECOND, refused).await.expect("all of them are answered");
    for result in refused {
        let error = result.expect_err("its row is held");
        assert!(matches!(&error, OperatorError::Store(error) if error.is_contended()), "{error:?}");
    }
    stranger.batch_execute("rollback").await.expect("the stranger leaves");
    operator.discard(1, &act).await.expect("the way is free");
}

/// A begin under a fresh name, on the hot path or off it.
fn either_begin(is_fresh: bool) -> Change {
    if is_fresh { begin() } else { other_begin(&TestRecord::fresh()) }
}
