//! Rows that the reaper skips, and what it leaves behind.

use ibid::outcome::{Begin, Outcome};
use ibid::upkeep::{Retention, reap_once, reap_store};
use ibid::{Ibid, Settings};
use ibid_core::change::HistoryKind;
use ibid_core::policy::Policy;
use ibid_core::reap::ReapTarget;
use ibid_core::record::{ErrorCode, RecordDetails};
use ibid_core::store::RenewOutcome;
use ibid_testkit::contract::{answering, load_all, put, reap_all, telling};

use super::*;
use crate::request_fixture::ask;

/// The worst case for other sessions: a reap step stalls while it has every row locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_goes_on_while_a_step_of_the_reaper_is_open() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let running: Vec<Change> = (0..100).map(|_| begin()).collect();
    commit_all(&*store, running.clone()).await;
    commit_all(&*store, (0..200).map(|_| going().1).collect()).await;
    let reaper = stranger(&server, &database).await;
    reaper.batch_execute("begin").await.expect("a transaction");
    let step = include_str!("../../../src/store/postgres/sql/reap_records.sql");
    let step = step.replace("$1", "0").replace("$2", "1000").replace("$3", "'{}'");
    let step = reaper.query_one(&step, &[]).await;
    assert_eq!(step.expect("a step").get::<_, i64>(1), 200, "it removes them, and does not commit");

    // New keys, renewals, finishes and reads, and a reaper of another node.
    let fresh = commit_all(&*store, (0..100).map(|_| begin()).collect()).await;
    assert!(fresh.values().all(|fate| matches!(fate, Commit::Done(_))), "{fresh:?}");
    let loaded = load_all(&*store, running.iter().map(|change| change.id)).await;
    let records: Vec<Arc<Record>> = loaded.into_iter().map(|stored| stored.record).collect();
    let leases = records.iter().take(50).map(|record| (record.id, record.version)).collect();
    let renewed = store.renew(leases).await.expect("a renewal succeeds");
    assert!(renewed.iter().all(|renewed| matches!(renewed, RenewOutcome::Until(_))), "{renewed:?}");
    let ended = commit_all(&*store, records.iter().skip(50).map(|record| finish(record)).collect()).await;
    assert!(ended.len() == 50 && ended.values().all(|fate| matches!(fate, Commit::Done(_))), "{ended:?}");
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.removed, 0, "what one has the other passes over");

    reaper.batch_execute("rollback").await.expect("it is undone");
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.removed, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_outcome_goes_after_unknown_retention() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let settings = Settings::default().with(|settings| settings.cache_ttl = Duration::ZERO);
    let ibid = Ibid::start(store.clone(), settings).await.expect("it starts");
    let policy = Policy::default().with(|policy| policy.unknown_retention = Some(48 * HOUR));
    let begin = async || ibid.begin(ask(&ibid, "shop", "k", policy.clone())).await.expect("an answer");
    let Begin::Run(lost) = begin().await else { panic!("it is new") };
    drop(lost.unknown(ErrorCode::Broken).await);
    pass(&server, &database, 47 * HOUR);
    assert_eq!(reap_once(&ibid, Retention::default()).await.expect("a round").settled, 0);
    assert!(matches!(begin().await, Begin::Skip(Outcome::Unknown { settled_in: None })));
    pass(&server, &database, 2 * HOUR);
    let harvest = reap_once(&ibid, Retention::default()).await.expect("a round");
    assert_eq!((harvest.settled, harvest.removed), (1, 1), "{harvest:?}");
    let lines = "select count(*) from ibid_event where detail like '%unknown_retention%'";
    assert_eq!(server.sql(&database, lines), "1", "never silently");
    assert!(matches!(begin().await, Begin::Run(_)), "as new");
}

const HOUR: Duration = Duration::from_secs(3600);

pub(super) fn going() -> (TestRecord, Change) {
    let name = TestRecord::fresh();
    let change = insert(&name, Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) });
    (name, change)
}

#[tokio::test]
async fn a_business_row_outlives_the_record_that_it_points_to() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    server.sql(
        &database,
        "create table payment (amount int, record uuid references ibid_record (id) on delete set null)",
    );
    let (name, change) = going();
    put(&*store, &change).await;
    let stranger = stranger(&server, &database).await;
    let sql = format!("insert into payment values (7, '{}')", name.id);
    stranger.execute(&sql, &[]).await.expect("a payment");
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.removed, 1);
    assert_eq!(server.sql(&database, "select amount, record is null from payment"), "7|t");
}

#[tokio::test]
async fn a_record_held_by_a_business_row_blocks_no_other() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    server.sql(&database, "create table payment (record uuid references ibid_record (id))");
    let stranger = stranger(&server, &database).await;
    let ids = |names: &[TestRecord]| names.iter().map(|name| name.id.to_string()).collect::<Vec<_>>();
    let names: Vec<TestRecord> = (0..300).map(|_| TestRecord::fresh()).collect();
    let draft = |name: &TestRecord| Draft { purge_in: Some(Duration::ZERO), ..draft(name, State::Completed) };
    let change =
        |name: &TestRecord| telling(answering(insert(name, draft(name)), b"paid"), HistoryKind::Settled, "");
    commit_all(&*store, names.iter().map(change).collect()).await;
    // The first, the last, several in a row, more than one step skips, and many at one instant.
    let referenced: Vec<TestRecord> =
        [0, 1, 2, 150, 299].into_iter().chain(200..250).map(|place| names[place].clone()).collect();
    let sql = "insert into payment select unnest($1::text[])::uuid";
    stranger.execute(sql, &[&ids(&referenced)]).await.expect("payments");
    server.sql(&database, "update ibid_record set expires_at = null, purge_at = 7, reap_at = 7");
    let sql = "update ibid_record set purge_at = 8 + get_byte(uuid_send(id), 0), reap_at = 8 + get_byte(uuid_send(id), 0)
               where id = any ($1::text[]::uuid[])";
    stranger.execute(sql, &[&ids(&names[..100])]).await.expect("separate instants");
    let sql = "with c as (
                 insert into ibid_effect_call (birth, owes, letter, record, name, downstream_key, rules)
                 values (1, false, false, $1::text::uuid, 'mail', 'd', '{}') returning seq)
               insert into ibid_effect (seq, nonce, lease_us, created_at, done_at, count, tries, state, blocked, dead_letter,
                                        tenant, kind)
               select seq, 1, 0, 0, 0, 1, 0, 1, false, false, 'shop', 'http' from c";
    stranger.execute(sql, &[&names[151].id.to_string()]).await.expect("an effect");
    let rest = "select count(*), count(p.record), count(*) filter (where r.body is null) from ibid_record r
                left join payment p on p.record = r.id";
    let keep = Retention::default().with(|keep| keep.history = Duration::ZERO);
    let harvest = reap_store(&*store, keep, |_| {}).await.expect("nothing failed");
    assert_eq!((harvest.removed, harvest.held, harvest.effects, harvest.history), (245, 55, 1, 245));
    assert_eq!(server.sql(&database, rest), "55|55|0", "those that are held stay whole");
    let (late, change) = going();
    put(&*store, &change).await;
    let harvest = reap_store(&*store, keep, |_| {}).await.expect("nothing failed");
    assert_eq!((harvest.removed, harvest.held), (1, 55), "again, past all that are held");
    assert_eq!(load(&*store, late.id).await, None);
    server.sql(&database, "delete from payment");
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.removed, 55, "once they are let go they go");
}

#[tokio::test]
async fn a_reap_run_gets_past_any_number_of_held_records() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let names: Vec<TestRecord> = (0..250).map(|_| TestRecord::fresh()).collect();
    let change = |name: &TestRecord| {
        insert(name, Draft { purge_in: Some(Duration::ZERO), ..draft(name, State::Completed) })
    };
    commit_all(&*store, names.iter().map(change).collect()).await;
    // Each at a separate instant; more are referenced than many steps skip, and the removable ones come last.
    server.sql(
        &database,
        "create table payment (record uuid references ibid_record (id));
         update ibid_record r set expires_at = null, purge_at = 7 + place, reap_at = 7 + place
           from (select id, row_number() over (order by id) as place from ibid_record) as placed
          where placed.id = r.id;
         insert into payment select id from ibid_record where purge_at <= 7 + 240",
    );
    let mut reported = 0;
    let run =
        reap_store(&*store, Retention::default(), |harvest| reported = reported.max(harvest.held)).await;
    let harvest = run.expect("nothing failed");
    assert_eq!((harvest.removed, harvest.held, reported), (10, 240, 240));
    assert!(!harvest.unfinished);
}

#[tokio::test]
async fn a_deferred_constraint_holds_only_its_own_record() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let deferred = "references ibid_record (id) deferrable initially deferred";
    server.sql(&database, &format!("create table payment (record uuid {deferred})"));
    let (name, change) = going();
    put(&*store, &change).await;
    put(&*store, &going().1).await;
    let stranger = stranger(&server, &database).await;
    let sql = format!("insert into payment values ('{}')", name.id);
    stranger.execute(&sql, &[]).await.expect("a payment");
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.removed, 1);
    assert!(load(&*store, name.id).await.is_some());
}

#[tokio::test]
async fn a_record_with_a_call_still_to_be_made_stays() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let (name, change) = going();
    put(&*store, &change).await;
    let (other, change) = going();
    put(&*store, &change).await;
    let stranger = stranger(&server, &database).await;
    let sql = "with c as (
                 insert into ibid_effect_call (birth, owes, letter, record, name, downstream_key, rules)
                 values (1, false, false, $1::text::uuid, 'mail', 'd', '{}') returning seq)
               insert into ibid_effect (seq, nonce, lease_us, created_at, count, tries, state, blocked, dead_letter, tenant, kind)
               select seq, 1, 0, 0, 1, 0, 1, false, false, 'shop', 'http' from c";
    stranger.execute(sql, &[&name.id.to_string()]).await.expect("an effect");
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.removed, 1, "only the other goes");
    assert!(load(&*store, other.id).await.is_none() && load(&*store, name.id).await.is_some());
    server.sql(&database, "update ibid_effect set done_at = 0");
    assert_eq!(
        reap_all(&*store, ReapTarget::Records).await.removed,
        1,
        "once it is made the record goes too"
    );
    assert_eq!(server.sql(&database, "select count(*) from ibid_effect"), "1", "and the effect stays");
}

#[tokio::test]
async fn a_tombstone_keeps_only_id_fingerprint_and_instants() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let name = TestRecord::fresh();
    let note = RecordDetails { provider_id: Some("ch_1".to_owned()), ..RecordDetails::default() };
    let expired = Draft {
        expires_in: Some(Duration::ZERO),
        purge_in: Some(LONG),
        note,
        ..draft(&name, State::Completed)
    };
    put(&*store, &answering(insert(&name, expired), b"secret")).await;
    let step = reap_all(&*store, ReapTarget::Records).await;
    assert_eq!((step.stripped, step.removed), (1, 0));
    let columns = "select tenant || method || path || key, num_nulls(note, status, lines, body), flags, expires_at is not null
                   from ibid_record";
    assert_eq!(server.sql(&database, columns), "|4|128|t");
    server.sql(&database, "update ibid_record set purge_at = 1, reap_at = 1");
    let step = reap_all(&*store, ReapTarget::Records).await;
    assert_eq!((step.stripped, step.removed), (0, 1));
}

#[tokio::test]
async fn an_ended_effect_is_reaped_but_an_open_one_never() {
    let server = Postgres::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let (name, change) = going();
    let birth = put(&*store, &change).await.record.birth.0.cast_signed();
    let stranger = stranger(&server, &database).await;
    let sql = "with c as (
                 insert into ibid_effect_call (birth, owes, letter, record, name, downstream_key, rules)
                 values ($2, false, false, $1::text::uuid, $4, 'd', '{}') returning seq)
               insert into ibid_effect (seq, nonce, lease_us, created_at, done_at, count, tries, state, blocked, dead_letter,
                                        tenant, kind)
               select seq, 1, 0, 0, case when not $3 then 0 end, 1, 0, 1, false, false, 'shop', 'http' from c";
    let other = TestRecord::fresh();
    let (mine, others) = (name.id.to_string(), other.id.to_string());
    for (id, open, effect) in [(&mine, false, "done"), (&others, false, "done"), (&others, true, "dead")] {
        stranger.execute(sql, &[id, &birth, &open, &effect]).await.expect("an effect");
    }
    let course = ReapTarget::Effects { keep: LONG };
    let ripe = async || browse(&store).count_reapable(course).await.expect("it is counted").remove;
    assert_eq!((ripe().await, reap_all(&*store, course).await.removed), (1, 1), "the record of one is there");
    assert_eq!(reap_all(&*store, ReapTarget::Records).await.removed, 1);
    assert_eq!((ripe().await, reap_all(&*store, course).await.removed), (1, 1));
    assert_eq!((ripe().await, reap_all(&*store, course).await.removed), (0, 0));
    assert_eq!(server.sql(&database, "select name from ibid_effects"), "dead");
    server.sql(&database, "update ibid_effect set done_at = 4000000000000000");
    assert_eq!(
        (ripe().await, reap_all(&*store, course).await.removed),
        (0, 0),
        "nothing goes before its time"
    );
}
