//! The tables, on both databases.

use futures_util::future::join_all;
use http::HeaderMap;
use ibid::transaction::OwnedTx as _;
use ibid::transaction::sqlx_postgres::SqlxPostgres;
use ibid::transaction::sqlx_sqlite::SqlxSqlite;
use payments::account::{Account, Authentication};
use payments::db::payments::{Page, Settled, new_payment_id};
use payments::db::rides::{new_receipt_id, new_ride_id};
use payments::db::{Backend, Db, Writes as _};
use payments::input::{NewPayment, NewRide};

use crate::world::Place;

pub(crate) fn account(token: &str) -> Account {
    let headers: HeaderMap =
        [(http::header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap())].into_iter().collect();
    Authentication::AnyToken.account_of(&headers).unwrap()
}

pub(crate) fn payment(customer_id: &str, amount_cents: i64) -> NewPayment {
    NewPayment { customer_id: customer_id.into(), amount_cents, currency: "EUR".into() }
}

#[tokio::test]
async fn tables_on_postgres() {
    story(&Place::postgres()).await;
}

#[tokio::test]
async fn tables_on_sqlite() {
    story(&Place::sqlite()).await;
}

async fn story(place: &Place) {
    let db = nodes_that_start_at_once_find_the_same_tables(place).await;
    match &db {
        Db::Postgres(pool) => rows(&db, &SqlxPostgres(pool.clone())).await,
        Db::Sqlite(pool) => rows(&db, &SqlxSqlite(pool.clone())).await,
    }
    db.close().await;
}

async fn rows<D: Backend>(db: &Db, database: &D) {
    a_payment_is_there_when_its_transaction_commits_and_ends_once(db, database).await;
    a_ride_is_filled_in_phase_by_phase(db, database).await;
    pages_follow_each_other_without_gap(db, database).await;
    writers_wait_for_each_other(db, database).await;
}

async fn nodes_that_start_at_once_find_the_same_tables(place: &Place) -> Db {
    let nodes = join_all((0..6).map(|_| async {
        payments::store::open(&place.store_url()).await.unwrap();
        let db = Db::connect(&place.store_url()).await.unwrap();
        db.make_tables().await.unwrap();
        db
    }));
    let mut nodes = nodes.await;
    let db = nodes.pop().unwrap();
    for node in nodes {
        node.close().await;
    }
    db.make_tables().await.unwrap();
    db
}

async fn a_payment_is_there_when_its_transaction_commits_and_ends_once<D: Backend>(db: &Db, database: &D) {
    let (ann, bob) = (account("ann"), account("bob"));
    let id = new_payment_id();
    let mut tx = database.begin().await.unwrap();
    tx.insert_payment(&id, &ann, &payment("c", i64::MAX), None).await.unwrap();
    drop(tx);
    assert_eq!(db.payment(&ann, &id).await.unwrap(), None);

    let mut tx = database.begin().await.unwrap();
    tx.insert_payment(&id, &ann, &payment("c", i64::MAX), None).await.unwrap();
    tx.commit().await.unwrap();
    let found = db.payment(&ann, &id).await.unwrap().unwrap();
    assert_eq!((found.amount_cents, found.status.as_str(), found.charge_id), (i64::MAX, "pending", None));
    // After 2020 and before 2100: milliseconds, not seconds or days.
    assert!((1_577_836_800_000..4_102_444_800_000).contains(&found.created_at), "{}", found.created_at);
    assert_eq!(db.payment(&bob, &id).await.unwrap(), None);

    for (settled, charge, changed) in [(Settled::Succeeded, "ch_1", true), (Settled::Failed, "ch_2", false)] {
        let mut tx = database.begin().await.unwrap();
        assert_eq!(tx.settle_payment(&id, settled, Some(charge)).await.unwrap(), changed);
        tx.commit().await.unwrap();
    }
    let found = db.payment(&ann, &id).await.unwrap().unwrap();
    assert_eq!((found.status.as_str(), found.charge_id.as_deref()), ("succeeded", Some("ch_1")));
}

async fn a_ride_is_filled_in_phase_by_phase<D: Backend>(db: &Db, database: &D) {
    let ann = account("ann");
    let (id, receipt) = (new_ride_id(), new_receipt_id());
    let ride = NewRide { payment: payment("c", 900), origin: "a".into(), destination: "b".into() };
    let mut tx = database.begin().await.unwrap();
    tx.insert_ride(&id, &ann, &ride, None).await.unwrap();
    assert!(!tx.receipt_ride(&id, &receipt).await.unwrap(), "a receipt for a ride that is not paid");
    assert!(tx.settle_ride(&id, Settled::Succeeded, Some("ch_1")).await.unwrap());
    assert!(!tx.settle_ride(&id, Settled::Failed, None).await.unwrap());
    assert!(tx.receipt_ride(&id, &receipt).await.unwrap());
    assert!(!tx.receipt_ride(&id, "rcpt_2").await.unwrap());
    tx.commit().await.unwrap();
    let found = db.ride(&ann, &id).await.unwrap().unwrap();
    assert_eq!((found.status.as_str(), found.receipt_id), ("succeeded", Some(receipt)));
    assert_eq!(db.ride(&account("bob"), &id).await.unwrap(), None);
}

async fn pages_follow_each_other_without_gap<D: Backend>(db: &Db, database: &D) {
    let ann = account("ann");
    let mut ids = Vec::new();
    let mut tx = database.begin().await.unwrap();
    for n in 1..=5 {
        ids.insert(0, new_payment_id());
        tx.insert_payment(&ids[0], &ann, &payment("pages", n), None).await.unwrap();
    }
    tx.insert_payment(&new_payment_id(), &ann, &payment("other", 1), None).await.unwrap();
    tx.insert_payment(&new_payment_id(), &account("bob"), &payment("pages", 1), None).await.unwrap();
    tx.commit().await.unwrap();
    let mut seen: Vec<String> = Vec::new();
    loop {
        let page = Page { customer_id: "pages", before: seen.last().map(String::as_str), limit: 2 };
        let found = db.payments(&ann, &page).await.unwrap();
        if found.is_empty() {
            break;
        }
        seen.extend(found.into_iter().map(|payment| payment.id));
    }
    assert_eq!(seen, ids);
}

async fn writers_wait_for_each_other<D: Backend>(db: &Db, database: &D) {
    let ann = account("ann");
    let writers = join_all((0..24).map(|n| {
        let ann = ann.clone();
        async move {
            let mut tx = database.begin().await.unwrap();
            tx.insert_payment(&new_payment_id(), &ann, &payment("writers", n + 1), None).await.unwrap();
            tx.commit().await.unwrap();
        }
    }));
    writers.await;
    let page = Page { customer_id: "writers", before: None, limit: 100 };
    assert_eq!(db.payments(&ann, &page).await.unwrap().len(), 24);
}
