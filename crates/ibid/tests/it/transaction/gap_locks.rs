//! A caller's transaction on MySQL runs at REPEATABLE READ. While it replaces an expired record and stays open, rows of other
//! requests do not wait for it.

use std::sync::Arc;

use ibid::outcome::Begin;
use ibid::phase::PhaseError;
use ibid::transaction::TxError;
use ibid_core::policy::{OnLapse, Policy};
use ibid_core::record::State;
use ibid_core::response::Response;
use ibid_testkit::contract::{TestRecord, answering, draft, insert, put};

use super::harness::{NodeOnDatabase, answer, is_stored, pay, pay_and_charge};
use crate::adapters::databases::{MysqlAsyncPools, SqlxMysqlPools, TestDatabase};
use crate::adapters::{Adapter, PATIENT, execute, number};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_transaction_locks_no_gap_on_mysql() {
    every_rule(&NodeOnDatabase::<SqlxMysqlPools>::new(TestDatabase::mariadb()).await).await;
    every_rule(&NodeOnDatabase::<MysqlAsyncPools>::new(TestDatabase::mariadb()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_old_snapshot_lacks_is_removed_on_mysql() {
    // The result of a phase goes with the finish.
    let policy = Policy::one_transaction().with(|policy| policy.on_lapse = OnLapse::Resume);
    let world = NodeOnDatabase::<MysqlAsyncPools>::under(policy, TestDatabase::mariadb()).await;
    what_an_old_snapshot_lacks_is_removed(&world).await;
}

async fn every_rule<A: Adapter>(world: &NodeOnDatabase<A>) {
    others_insert_while_a_generation_is_replaced(world, "empty", false).await;
    others_insert_while_a_generation_is_replaced(world, "full", true).await;
}

/// T1 reads and takes its snapshot; T2 commits a phase with a result; T1 finishes the record and must remove the result.
async fn what_an_old_snapshot_lacks_is_removed<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut attempt = world.begin("old").await;
    let mut tx = world.tx().await;
    assert_eq!(number(&mut tx, "select count(*) from ibid_body where kind >= 16").await, 0);
    let phase: Result<String, PhaseError<TxError>> = attempt
        .phase("ride", &world.db, async |mut inside| {
            pay(&mut *inside, "old", "ann").await?;
            Ok("a result".to_owned())
        })
        .await;
    phase.expect("it commits");
    assert!(world.number("select count(*) from ibid_body where kind >= 16").await > 0);
    let inside = attempt.join_tx(tx).await.expect("the lease is ours");
    assert!(is_stored(&inside.finish(answer(201)).await.expect("it commits"), 201));
    assert_eq!(world.number("select count(*) from ibid_body").await, 0);
}

async fn others_insert_while_a_generation_is_replaced<A: Adapter>(
    world: &NodeOnDatabase<A>,
    key: &str,
    has_content: bool,
) {
    let mut first = world.begin_inside(key).await;
    let response = match has_content {
        true => {
            pay_and_charge(&mut first, key, "ann").await.expect("it works");
            large()
        }
        false => answer(201),
    };
    assert!(is_stored(&first.finish(response).await.expect("it commits"), 201));
    world.sql("update ibid_effect set done_at = 1, state = 3").await;
    world.age(&format!("key = '{key}'")).await;

    // At a node with an empty cache.
    let node = world.other_node().await;
    let Ok(Begin::Run(open)) = node.begin_inside(world.ask(key), &world.db, PATIENT).await else {
        panic!("`{key}` has expired");
    };
    // A store waits for a lock for a second, and then fails.
    let other = TestRecord::fresh();
    let mut stored = answering(insert(&other, draft(&other, State::Completed)), b"");
    stored.response = Some(Arc::new(large()));
    put(&**world.ibid.store(), &stored).await;
    let neighbour = format!("next to {key}");
    let mut attempt = world.begin(&neighbour).await;
    let mut inside = attempt.join_tx(world.tx().await).await.expect("the lease is ours");
    execute(&mut *inside, "set session innodb_lock_wait_timeout = 1", &[]).await.expect("a setting");
    pay_and_charge(&mut inside, &neighbour, "bob").await.expect("the effect's row waits for no lock");
    assert!(is_stored(&inside.finish(large()).await.expect("it commits"), 201));

    assert!(is_stored(&open.finish(answer(201)).await.expect("it commits"), 201));
    let of_the_key =
        format!("from ibid_record r join ibid_body b on b.birth = r.birth where r.`key` = '{key}'");
    assert_eq!(world.number(&format!("select count(*) {of_the_key}")).await, 0);
    assert!(world.effects(key).await.iter().all(|effect| effect.payload.is_empty()), "they are as personal");
    assert_eq!(world.number("select count(*) from ibid_body b where not exists (select 1 from ibid_record r where r.birth = b.birth)").await, 0, "no body is left behind");
}

/// A response that is stored apart from its record.
fn large() -> Response {
    Response::plain(201, "text/plain", "x".repeat(2000))
}
