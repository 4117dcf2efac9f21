//! The orders of upkeep: what an older program left out of them, and what they name before its time.

use ibid_core::policy::Policy;
use ibid_core::reap::Course;
use ibid_testkit::contract::{SHORT, fresh_under, put, reap_all};

use super::*;

const NOW: &str = "(extract(epoch from clock_timestamp()) * 1000000)::int8";

async fn due(store: &PostgresStore, state: State) -> Vec<Name> {
    let found = store.due(state, 100).await.expect("due is answered");
    found.iter().map(|stored| name_of(&stored.record)).collect()
}

fn kept_for(retention: Duration) -> Change {
    let policy = Policy { lease: LONG, retention, ..Policy::default() };
    fresh_under(&Name::fresh(), &Arc::new(policy))
}

const MINUTE: Duration = Duration::from_secs(60);

fn ids(names: &[Name]) -> Vec<ibid_core::scope::RecordId> {
    names.iter().map(|name| name.id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_in_no_order_are_given_their_places() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let lapsed = put(&*store, &fresh(&Name::fresh(), SHORT)).await.record;
    let running = put(&*store, &begin()).await.record;
    let lapsing = put(&*store, &fresh(&Name::fresh(), MINUTE)).await.record;
    let begun = put(&*store, &kept_for(SHORT)).await.record;
    let expired = put(&*store, &finish(&begun)).await.record;
    let begun = put(&*store, &begin()).await.record;
    let completed = put(&*store, &finish(&begun)).await;
    pass(&server, &database, SECOND);
    server.sql(
        &database,
        "update ibid_record set first_due = null, reap_at = null, watch_state = null, watch_at = null",
    );
    assert!(due(&store, State::InProgress).await.is_empty(), "nobody can know of them yet");
    assert_eq!(reap_all(&*store, Course::Records).await.removed, 1);
    assert_eq!(load(&*store, expired.id).await, None, "what is over goes");
    let stays = load(&*store, completed.record.id).await.expect("it stands");
    let kept = (completed.record.version, completed.answer);
    assert_eq!((stays.record.version, stays.answer), kept, "what is not stays");
    pass(&server, &database, MINUTE);
    let found = due(&store, State::InProgress).await;
    assert_eq!(ids(&found), [lapsed.id, lapsing.id], "what lapsed is due, also what did so since");
    let lost =
        "select count(*) from ibid_record where reap_at is null or (due_at is null) <> (watch_at is null)";
    assert_eq!(server.sql(&database, lost), "0");
    put(&*store, &finish(&running)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_upgrade_one_round_gives_many_records_their_places() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let begun = put(&*store, &begin()).await.record;
    put(&*store, &finish(&begun)).await;
    let copies = "create temp table copy as select r.* from ibid_record r, generate_series(1, 9000);
                  update copy set id = sha256(ctid::text::bytea), first_due = null, reap_at = null;
                  insert into ibid_record select * from copy";
    server.sql(&database, copies);
    assert_eq!(reap_all(&*store, Course::Records).await.removed, 0);
    assert_eq!(server.sql(&database, "select count(*) from ibid_record where reap_at is null"), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reaper_puts_off_what_was_finished_later_than_begun_to_its_real_instant() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let begun = put(&*store, &kept_for(LONG)).await.record;
    let stored = put(&*store, &finish(&begun)).await;
    // As if it had been begun long ago.
    server.sql(&database, "update ibid_record set reap_at = 1");
    let ripe = async || store.ripe(Course::Records).await.expect("it is counted");
    assert_eq!(ripe().await.remove, 0);
    let reaped = reap_all(&*store, Course::Records).await;
    assert_eq!((reaped.stripped, reaped.removed, reaped.held), (0, 0, 0), "nothing goes before its time");
    assert_eq!(load(&*store, begun.id).await.map(|after| after.record), Some(stored.record));
    assert_eq!(server.sql(&database, "select reap_at = expires_at from ibid_record"), "t");

    let ran_long = put(&*store, &kept_for(SHORT)).await.record;
    pass(&server, &database, SECOND);
    put(&*store, &finish(&ran_long)).await;
    // Retention counts from the finish: this one may come too early, and puts it off.
    let early = reap_all(&*store, Course::Records).await.removed;
    pass(&server, &database, SECOND);
    let later = reap_all(&*store, Course::Records).await.removed;
    assert_eq!(early + later, 1, "it goes at its real instant");
    assert_eq!(load(&*store, ran_long.id).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reaper_looks_again_in_an_hour_at_what_still_runs_and_finds_what_nobody_else_did() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let running = put(&*store, &begin()).await.record;
    let lapsed = put(&*store, &fresh(&Name::fresh(), SHORT)).await.record;
    pass(&server, &database, SECOND);
    server.sql(&database, "update ibid_record set reap_at = 1, first_due = null");
    assert!(due(&store, State::InProgress).await.is_empty(), "nobody looks through it any more");
    let reaped = reap_all(&*store, Course::Records).await;
    assert_eq!((reaped.stripped, reaped.removed, reaped.held), (0, 0, 0));
    let put_off = format!(
        "select count(*) from ibid_record where reap_at between {NOW} + 3500000000 and {NOW} + 3600000000"
    );
    assert_eq!(server.sql(&database, &put_off), "2");
    assert_eq!(ids(&due(&store, State::InProgress).await), [lapsed.id], "but the reaper came by");
    // It was put off for long, and goes in its turn all the same.
    for record in [running, lapsed] {
        let over = Draft {
            expires_in: Some(SHORT),
            purge_in: Some(SHORT),
            ..finish(&record).draft.expect("a draft")
        };
        put(&*store, &replace(&record, over)).await;
    }
    pass(&server, &database, SECOND);
    assert_eq!(reap_all(&*store, Course::Records).await.removed, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_a_step_of_the_reaper_takes_is_put_off_and_what_is_behind_it_goes() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    commit_all(&*store, (0..300).map(|_| begin()).collect()).await;
    let begun = put(&*store, &kept_for(SHORT)).await.record;
    put(&*store, &finish(&begun)).await;
    pass(&server, &database, SECOND);
    server.sql(&database, "update ibid_record set reap_at = 7 where due_at is not null");
    assert_eq!(reap_all(&*store, Course::Records).await.removed, 1, "also past those at one instant");
    assert_eq!(server.sql(&database, "select count(*) from ibid_record where reap_at = 7"), "0");
}

/// An upgrade of a database that is in use, from the step before the orders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_before_the_orders_loses_nothing_by_its_upgrade() {
    let server = Postgres::start();
    let (newer, older) = (server.create_database(), server.create_database());
    let model = open(&server, &newer).await;
    let policy =
        |retention, tombstone| Arc::new(Policy { lease: LONG, retention, tombstone, ..Policy::default() });
    let ended = async |policy: &Arc<Policy>| {
        let begun = put(&*model, &fresh_under(&Name::fresh(), policy)).await.record;
        put(&*model, &finish(&begun)).await.record
    };
    let (tomb, old_tomb) = (ended(&policy(SHORT, LONG)).await, ended(&policy(SHORT, LONG)).await);
    pass(&server, &newer, SECOND);
    assert_eq!(reap_all(&*model, Course::Records).await.stripped, 2);
    let gone = stranger(&server, &newer).await;
    let aged = "update ibid_record set purge_at = expires_at where id = $1";
    gone.execute(aged, &[&&old_tomb.id.as_bytes()[..]]).await.expect("its tombstone is over");
    let (expired, stripped) =
        (ended(&policy(SHORT, Duration::ZERO)).await, ended(&policy(SHORT, LONG)).await);
    let completed = ended(&policy(LONG, LONG)).await;
    let (running, lapsed) = (begin(), fresh(&Name::fresh(), SHORT));
    for change in [&running, &lapsed] {
        put(&*model, change).await;
    }
    let unknown = Name::fresh();
    put(&*model, &insert(&unknown, Draft { due_in: Some(SHORT), ..draft(&unknown, State::Unknown) })).await;
    pass(&server, &newer, SECOND);

    let steps = PostgresStore::migration_sql(0);
    let (before, _) = steps.split_once("\n-- Step 6.\n").expect("there is such a step");
    server.sql(&older, &format!("{before}\ncommit"));
    for table in ["ibid_policy", "ibid_record", "ibid_body"] {
        // Columns that are not there yet are left out.
        let copies = format!(
            "select format('insert into {table} select * from json_populate_record(null::{table}, %L)', row_to_json(r))
             from {table} r"
        );
        let copies = server.sql(&newer, &copies).replace('\n', ";\n");
        server.sql(&older, &copies);
    }
    let (from, to) = PostgresStore::migrate(&server.url_for(&older), options()).await.expect("an upgrade");
    assert_eq!((from, to), (5, PostgresStore::newest_schema()));

    let store = open(&server, &older).await;
    let all = [tomb.id, expired.id, stripped.id, completed.id, running.id, lapsed.id, unknown.id];
    for id in all.into_iter().chain([old_tomb.id]) {
        let (was, is) = (load(&*model, id).await.expect("it stands"), load(&*store, id).await);
        let is = is.expect("nothing is lost");
        assert_eq!((is.record, is.answer), (was.record, was.answer), "nor changed");
    }
    assert_eq!(ids(&due(&store, State::InProgress).await), [lapsed.id], "what lapsed is found");
    assert_eq!(ids(&due(&store, State::Unknown).await), [unknown.id]);
    let reaped = reap_all(&*store, Course::Records).await;
    assert_eq!((reaped.stripped, reaped.removed), (1, 2), "what is over goes");
    for gone in [expired.id, old_tomb.id] {
        assert_eq!(load(&*store, gone).await, None);
    }
    for stays in [tomb.id, stripped.id, completed.id, running.id] {
        assert!(load(&*store, stays).await.is_some());
    }
    let begun = load(&*store, running.id).await.expect("it stands").record;
    assert_eq!(put(&*store, &finish(&begun)).await.answer.as_deref(), Some(&b"done"[..]), "and goes on");
    put(&*store, &begin()).await;
}
