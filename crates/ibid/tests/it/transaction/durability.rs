//! The durable commit is that of the caller's session: it lasts, whatever that session is set to. Triggers that PostgreSQL
//! runs as part of the commit record the setting in effect.

use std::sync::Arc;

use ibid::outbox::{CallOutcome, CallResult, EffectCall, EffectHandler, RawPayload, Worker};
use ibid::outcome::Begin;
use ibid::phase::PhaseError;
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::transaction::{Database, OwnedTx, TxError};
use ibid::{Ibid, Settings};
use ibid_core::effect::NewEffect;
use ibid_core::record::ErrorCode;

use super::harness::{NodeOnDatabase, answer, is_stored, pay, pay_and_charge};
use crate::adapters::databases::TestDatabase;
use crate::adapters::{Adapter, PATIENT, execute};

pub(super) async fn every_rule<A: Adapter>(world: &NodeOnDatabase<A>) {
    watch_commits(world).await;
    for weak in ["off", "local", "remote_write"] {
        every_mode_commits_with(world, &world.ibid, weak, "on").await;
    }
    for strong in ["on", "remote_apply"] {
        every_mode_commits_with(world, &world.ibid, strong, strong).await;
    }
    a_caller_who_lowers_it_half_way_is_not_heard(world).await;
    let accepting = PostgresOptions::default().with(|options| options.accept_weak_durability = true);
    let store = PostgresStore::open(&world.test_db.at, accepting).await.unwrap();
    let accepts = Ibid::start(Arc::new(store), Settings::default()).await.unwrap();
    every_mode_commits_with(world, &accepts, "off", "off").await;
}

/// Checks every mode for an application whose role has this setting, and which setting its commits have.
async fn every_mode_commits_with<A: Adapter>(
    world: &NodeOnDatabase<A>,
    ibid: &Ibid,
    role: &str,
    commits: &str,
) {
    world.sql(&format!("alter role app set synchronous_commit = '{role}'")).await;
    let of =
        |what: &[&str]| what.iter().map(|what| format!("{what} {commits}")).collect::<Vec<_>>().join(", ");
    let all = of(&["ibid_effect", "ibid_record", "payment"]);
    let db = app::<A>(world).await;
    let key = |mode: &str| format!("{mode}: {role} to {commits}");

    reserved_first(world, ibid, &db, &key("reserved first")).await;
    assert_eq!(committed_rows(world).await, all, "{}", key("reserved first"));

    let all_inside = key("all inside");
    let outcome = ibid.begin_inside(world.ask(&all_inside), &db, PATIENT).await.unwrap();
    let Begin::Run(mut inside) = outcome else { panic!("{outcome:?}") };
    pay_and_charge(&mut inside, &all_inside, "app").await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    assert_eq!(committed_rows(world).await, all, "{all_inside}");

    one_phase(world, ibid, &db, &key("phase")).await;
    assert_eq!(committed_rows(world).await, all, "{}", key("phase"));

    let mut attempt = world.begin_on(ibid, &key("owed")).await;
    let mut inside = attempt.join_tx(db.begin().await.unwrap()).await.unwrap();
    inside.enqueue(NewEffect::new("owed", "owed", "42").owing()).await.unwrap();
    let _ = inside.owe().await.unwrap();
    assert_eq!(committed_rows(world).await, of(&["ibid_effect", "ibid_record"]), "{}", key("owed"));
    let worker = Worker::builder(ibid.clone(), db).on("owed", Charges).build().unwrap();
    assert_eq!(worker.run_once().await.unwrap().done, 1);
    assert_eq!(committed_rows(world).await, of(&["ibid_effect", "ibid_record"]), "{}", key("settled"));
}

async fn reserved_first<A: Adapter>(world: &NodeOnDatabase<A>, ibid: &Ibid, db: &A::Db, key: &str) {
    let mut attempt = world.begin_on(ibid, key).await;
    let mut inside = attempt.join_tx(db.begin().await.unwrap()).await.unwrap();
    pay_and_charge(&mut inside, key, "app").await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
}

async fn one_phase<A: Adapter>(world: &NodeOnDatabase<A>, ibid: &Ibid, db: &A::Db, key: &str) {
    let mut attempt = world.begin_on(ibid, key).await;
    let paid: Result<(), PhaseError<TxError>> = attempt
        .phase("paid", db, async |mut inside| {
            pay(&mut *inside, key, "app").await?;
            inside.enqueue(NewEffect::new("charge", "charge", "42")).await
        })
        .await;
    paid.unwrap();
    let _ = attempt.release(ErrorCode::NotSent).await;
}

async fn a_caller_who_lowers_it_half_way_is_not_heard<A: Adapter>(world: &NodeOnDatabase<A>) {
    let db = app::<A>(world).await;
    let mut attempt = world.begin("lowered").await;
    let mut inside = attempt.join_tx(db.begin().await.unwrap()).await.unwrap();
    execute(&mut *inside, "set local synchronous_commit = off", &[]).await.unwrap();
    pay(&mut *inside, "lowered", "app").await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    assert_eq!(committed_rows(world).await, "ibid_record on, payment on");
    // The session's own setting is unchanged.
    let mut tx = db.begin().await.unwrap();
    assert_eq!(NodeOnDatabase::<A>::text(&mut tx, "show synchronous_commit").await, "remote_apply");
    tx.rollback().await.unwrap();
}

/// Makes every commit of the application write a line per row, with the setting in effect at the commit.
async fn watch_commits<A: Adapter>(world: &NodeOnDatabase<A>) {
    world.sql("create role app superuser login").await;
    world.sql("create table seen (what text not null, by_whom text not null, setting text not null)").await;
    let see = "create function see() returns trigger language plpgsql as $$ begin
                 insert into seen values (tg_table_name, current_user, current_setting('synchronous_commit'));
                 return null;
               end $$";
    world.sql(see).await;
    for table in ["payment", "ibid_record", "ibid_effect"] {
        let at_commit = "deferrable initially deferred for each row execute function see()";
        let sql = format!("create constraint trigger see after insert or update on {table} {at_commit}");
        world.sql(&sql).await;
    }
}

/// Returns what the application has written since the last call, and with which setting it was committed.
async fn committed_rows<A: Adapter>(world: &NodeOnDatabase<A>) -> String {
    let mut tx = world.tx().await;
    let all = "with lines as (delete from seen returning *)
               select coalesce(string_agg(distinct what || ' ' || setting, ', '), '')
               from lines where by_whom = 'app'";
    let text = NodeOnDatabase::<A>::text(&mut tx, all).await;
    tx.commit().await.unwrap();
    text
}

/// Opens the application's pool under a separate role, with the role's current settings.
async fn app<A: Adapter>(world: &NodeOnDatabase<A>) -> A::Db {
    let at = world.test_db.at.replace("postgres://postgres@", "postgres://app@");
    A::open(&TestDatabase::at(at), 2, PATIENT).await
}

/// A provider that makes every call.
struct Charges;

impl<T: Send> EffectHandler<T> for Charges {
    type Payload = RawPayload;

    async fn call(&self, _: &EffectCall) -> CallOutcome {
        CallOutcome::Made(CallResult::default().with(|made| made.response = Some(answer(201))))
    }
}
