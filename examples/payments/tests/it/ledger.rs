//! Comparison of our payments and rides with the processor's charges, with and without differences.

use ibid_ledger::{Comparison, ComparisonReport, LedgerLine};
use ibid_testkit::processor::charge_request;
use payments::db::Db;
use serde_json::{Value, json};

use crate::fixture::{
    DatabaseAndProcessor, Node, TestDatabase, keyless_processor, on_both_databases, payment, ride,
};

on_both_databases!(
    ledgers_agree_after_processor_faults,
    a_charge_without_a_payment_is_reported,
    a_different_amount_is_reported,
    a_double_charge_is_reported,
);

/// Compares both ledgers.
///
/// It reads the processor's list first: each payment is stored before it is charged, so every charge in the list has a row
/// by the time that the rows are read.
async fn compare(world: &DatabaseAndProcessor) -> ComparisonReport {
    let (_, list) = world.provider.get("/charges").await;
    let mut comparison =
        Comparison::new(["amountCents", "currency", "status", "chargeId"].map(str::to_owned).to_vec());
    for (number, (id, amount, currency, status, charge_id)) in (1..).zip(our_rows(world).await) {
        let is_pending = status == "pending";
        // A charge that was refused outright does not exist at the processor.
        let open = is_pending || charge_id.is_none();
        let status = if is_pending { String::new() } else { status };
        let values = vec![amount.to_string(), currency, status, charge_id.unwrap_or_default()];
        let line = LedgerLine::new(number, id, values);
        let line = line.with(|line| (line.open, line.partial) = (open, is_pending));
        comparison.ours(line).expect("few lines");
    }
    for (number, charge) in (1..).zip(list["charges"].as_array().expect("a list")) {
        let text = |name: &str| charge[name].as_str().unwrap_or_default().to_owned();
        let status = if charge["status"] == "declined" { "failed".to_owned() } else { text("status") };
        let values = vec![charge["amountCents"].to_string(), text("currency"), status, text("chargeId")];
        let line = LedgerLine::new(number, text("reference"), values);
        comparison.theirs(line, || charge.to_string()).expect("few lines");
    }
    comparison.finish()
}

async fn our_rows(world: &DatabaseAndProcessor) -> Vec<(String, i64, String, String, Option<String>)> {
    let sql = "select id, amount_cents, currency, status, charge_id from payment \
               union all select id, amount_cents, currency, status, charge_id from ride";
    let db = world.database.db().await;
    let rows = match &db {
        Db::Postgres(database) => sqlx::query_as(sql).fetch_all(&database.0).await,
        #[cfg(feature = "mysql")]
        Db::Mysql(database) => sqlx::query_as(sql).fetch_all(&database.0).await,
        Db::Sqlite(database) => sqlx::query_as(sql).fetch_all(&database.0).await,
    };
    db.close().await;
    rows.expect("our rows")
}

/// Returns the kind and the reference of each difference.
fn differences(report: &ComparisonReport) -> Vec<(&str, &str)> {
    report.differences.iter().map(|difference| (difference.kind.name(), difference.key.as_str())).collect()
}

/// Makes a payment and waits until it has ended.
async fn pay(node: &Node, key: &str, amount_cents: i64) -> Value {
    let answer = node.post_until_done("/payments", "t", key, &payment("c", amount_cents)).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let id = crate::fixture::json(&answer)["paymentId"].as_str().expect("an id").to_owned();
    node.wait_until_settled("t", &id).await
}

async fn ledgers_agree_after_processor_faults(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "reset=every-3,error=every-4,busy=every-5:1s");
    let node = world.node("2s");
    // One payment after the other, so that each fault hits the call that it is meant for. `hurry` skips the pauses between
    // tries.
    let pay = async |key: &str, amount_cents| {
        let hurry = async {
            loop {
                world.hurry().await;
            }
        };
        tokio::select! {
            payment = pay(&node, key, amount_cents) => payment,
            () = hurry => unreachable!("an endless loop"),
        }
    };
    for n in 0..6 {
        pay(&format!("p{n}"), 500 + n).await;
    }
    let declined = pay("no", 1013).await;
    assert_eq!(declined["status"], "failed");
    let rode = node.post_until_done("/rides", "t", "r", &ride(700)).await;
    assert_eq!(rode.status, 201, "{}", rode.text());
    world.wait_for_rows("select id from ride where status = 'pending'", &[]).await;

    let report = compare(&world).await;
    assert_eq!(differences(&report), []);
    assert_eq!((report.counts.ours, report.counts.theirs, report.counts.alike), (8, 8, 8));
}

async fn a_charge_without_a_payment_is_reported(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "");
    let node = world.node("60s");
    pay(&node, "p", 500).await;
    // Two charges that we did not request: one made at the processor's console, one by a merchant's old program.
    assert_eq!(world.provider.call(&charge_request("by-hand", 900)).await.status, 201);
    let body = json!({ "amountCents": 700, "currency": "EUR", "customerId": "ann", "reference": "pay_lost" });
    let request = charge_request("old", 700).body(body.to_string());
    assert_eq!(world.provider.call(&request).await.status, 201);

    let report = compare(&world).await;
    assert_eq!(differences(&report), [("theirs_only", ""), ("theirs_only", "pay_lost")]);
    let line = report.differences[1].theirs.as_ref().expect("their line");
    assert_eq!(line.values[..3], ["700", "EUR", "succeeded"]);
}

async fn a_different_amount_is_reported(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "");
    let node = world.node("60s");
    let id = pay(&node, "p", 500).await["paymentId"].as_str().expect("an id").to_owned();
    pay(&node, "q", 600).await;
    world.texts("update payment set amount_cents = 499 where amount_cents = 500 returning id").await;
    let report = compare(&world).await;
    assert_eq!(differences(&report), [("differs", id.as_str())]);
    let column = &report.differences[0].columns[0];
    assert_eq!(
        (column.column.as_str(), column.ours.as_str(), column.theirs.as_str()),
        ("amountCents", "499", "500")
    );
}

async fn a_double_charge_is_reported(database: TestDatabase) {
    // This processor ignores keys, so the repeated call after a lost response charges again.
    let world = DatabaseAndProcessor { database, provider: keyless_processor("reset=first") };
    let node = world.node("2s");
    let id = pay(&node, "p", 500).await["paymentId"].as_str().expect("an id").to_owned();
    let report = compare(&world).await;
    assert_eq!(differences(&report)[0], ("theirs_twice", id.as_str()), "{:?}", differences(&report));
}
