//! `payments ledger`: the books of the API and of its processor, after good days and bad ones.

use std::process::{Command, Output};

use payments::db::Db;
use serde_json::{Value, json};

use crate::harness::{Program, charge};
use crate::world::{Node, Place, World, on_both_databases, payment, ride};

on_both_databases!(
    the_books_are_equal_after_a_bad_day,
    a_charge_that_we_know_nothing_of_is_found,
    an_amount_that_differs_is_found,
    a_double_charge_is_found,
);

fn ledger(world: &World, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
    command.args(["ledger", "--store", &world.place.url(), "--provider", &world.provider.url()]);
    command.args(more).output().expect("the program starts")
}

/// The exit code, and each finding's kind and reference.
fn found(world: &World) -> (Option<i32>, Vec<(String, String)>) {
    let output = ledger(world, &["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let word = |finding: &Value, name: &str| finding[name].as_str().expect("a text").to_owned();
    let findings = report["differences"].as_array().expect("a list").iter();
    (output.status.code(), findings.map(|found| (word(found, "kind"), word(found, "reference"))).collect())
}

fn of(kind: &str, reference: &str) -> (String, String) {
    (kind.to_owned(), reference.to_owned())
}

/// Pays, and waits until it has ended.
async fn paid(node: &Node, key: &str, amount_cents: i64) -> Value {
    let answer = node.post_until_done("/payments", "t", key, &payment("c", amount_cents)).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let id = crate::world::json(&answer)["paymentId"].as_str().expect("an id").to_owned();
    node.settled("t", &id).await
}

async fn the_books_are_equal_after_a_bad_day(place: Place) {
    let world = World::new(place, "reset=every-3,error=every-4,busy=every-5:1s");
    let node = world.node("2s");
    // One after the other, so that each bad answer comes where it was meant to. Nobody waits for the pauses between tries.
    let paid = async |key: &str, amount_cents| {
        let hurrying = async {
            loop {
                world.hurry().await;
            }
        };
        tokio::select! {
            payment = paid(&node, key, amount_cents) => payment,
            () = hurrying => unreachable!("it goes on for ever"),
        }
    };
    for n in 0..6 {
        paid(&format!("p{n}"), 500 + n).await;
    }
    let declined = paid("no", 1013).await;
    assert_eq!(declined["status"], "failed");
    let rode = node.post_until_done("/rides", "t", "r", &ride(700)).await;
    assert_eq!(rode.status, 201, "{}", rode.text());
    world.comes_to("select id from ride where status = 'pending'", &[]).await;

    assert_eq!(found(&world), (Some(0), vec![]));
    let table = ledger(&world, &[]);
    let said = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(said.starts_with("ours 8, theirs 8, alike 8, 0 theirs_twice"), "{said}");
}

async fn a_charge_that_we_know_nothing_of_is_found(place: Place) {
    let world = World::new(place, "");
    let node = world.node("60s");
    paid(&node, "p", 500).await;
    // Somebody at the processor's own console, and a merchant's old program.
    assert_eq!(world.provider.call(&charge("by-hand", 900)).await.status, 201);
    let body = json!({ "amountCents": 700, "currency": "EUR", "customerId": "ann", "reference": "pay_lost" });
    let request = charge("old", 700).body(body.to_string());
    assert_eq!(world.provider.call(&request).await.status, 201);

    assert_eq!(found(&world), (Some(1), vec![of("theirs_only", ""), of("theirs_only", "pay_lost")]));
    let table = ledger(&world, &[]);
    assert_eq!(table.status.code(), Some(1));
    let said = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(said.contains("theirs_only   pay_lost  700 EUR succeeded ch_"), "{said}");
}

async fn an_amount_that_differs_is_found(place: Place) {
    let world = World::new(place, "");
    let node = world.node("60s");
    let id = paid(&node, "p", 500).await["paymentId"].as_str().expect("an id").to_owned();
    paid(&node, "q", 600).await;
    let db = Db::connect(&world.place.store_url()).await.expect("the database answers");
    let mend = "update payment set amount_cents = 499 where amount_cents = 500";
    match &db {
        Db::Postgres(pool) => drop(sqlx::query(mend).execute(pool).await.expect("an update")),
        Db::Sqlite(pool) => drop(sqlx::query(mend).execute(pool).await.expect("an update")),
    }
    db.close().await;
    assert_eq!(found(&world), (Some(1), vec![of("differs", &id)]));
    let said = String::from_utf8_lossy(&ledger(&world, &[]).stdout).into_owned();
    assert!(said.contains("amountCents: 499 ≠ 500"), "{said}");
}

async fn a_double_charge_is_found(place: Place) {
    // A processor without keys: the call whose answer was lost is made again, and charges again.
    let provider = Program::provider(&["--ignore-keys", "--faults", "reset=first"]);
    let world = World { place, provider };
    let node = world.node("2s");
    let id = paid(&node, "p", 500).await["paymentId"].as_str().expect("an id").to_owned();
    let (code, findings) = found(&world);
    assert_eq!((code, &findings[0]), (Some(1), &of("theirs_twice", &id)), "{findings:?}");
}

#[tokio::test]
async fn a_processor_that_does_not_answer_is_no_difference() {
    let world = World::new(Place::sqlite(), "");
    drop(world.node("60s"));
    let gone = Program::provider(&[]);
    let url = gone.url();
    gone.kill();
    let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
    let output = command.args(["ledger", "--store", &world.place.url(), "--provider", &url]).output();
    assert_eq!(output.expect("the program starts").status.code(), Some(3));
}
