//! What purge leaves alone.

use ibid_core::store::Store;
use ibid_testkit::contract::put;

use super::*;

fn going() -> (Name, Change) {
    let name = Name::fresh();
    let change = insert(&name, Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) });
    (name, change)
}

#[tokio::test]
async fn a_business_row_outlives_the_record_that_it_points_to() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    server.sql(
        &database,
        "create table payment (amount int, record bytea references ibid_record (id) on delete set null)",
    );
    let (name, change) = going();
    put(&*store, &change).await;
    let stranger = stranger(&server, &database).await;
    let sql = "insert into payment values (7, $1)";
    stranger.execute(sql, &[&&name.id.as_bytes()[..]]).await.expect("a payment");
    assert_eq!(store.purge(10).await.expect("a purge succeeds"), 1);
    assert_eq!(server.sql(&database, "select amount, record is null from payment"), "7|t");
}

#[tokio::test]
async fn a_record_with_a_call_still_to_be_made_stays() {
    let server = Postgres::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let (name, change) = going();
    put(&*store, &change).await;
    let (other, change) = going();
    put(&*store, &change).await;
    let stranger = stranger(&server, &database).await;
    let sql = "insert into ibid_effect (birth, nonce, lease_us, created_at, count, tries, state, open, owes, record,
                                        name, kind, downstream_key, rules, tenant, payload)
               values (1, 1, 0, 0, 1, 0, 1, true, false, $1, 'mail', 'http', 'd', '', 'shop', '')";
    stranger.execute(sql, &[&&name.id.as_bytes()[..]]).await.expect("an effect");
    assert_eq!(store.purge(10).await.expect("a purge succeeds"), 1, "only the other goes");
    assert!(load(&*store, other.id).await.is_none() && load(&*store, name.id).await.is_some());
    server.sql(&database, "update ibid_effect set open = false");
    assert_eq!(store.purge(10).await.expect("a purge succeeds"), 1, "once it is made the record goes too");
    assert_eq!(server.sql(&database, "select count(*) from ibid_effect"), "1", "and the effect stays");
}
