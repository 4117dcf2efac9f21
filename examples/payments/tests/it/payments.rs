//! `POST /payments`: one key makes one payment and one charge, whatever the processor does.

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::fixture::{
    DatabaseAndProcessor, Node, TestDatabase, json, on_both_databases, payment, post_request, ride, wait_for,
};
use crate::harness::Program;

on_both_databases!(
    every_retry_of_a_payment_gets_the_first_response,
    twenty_requests_at_once_make_one_payment,
    refused_input_does_not_use_up_the_key,
    a_declined_card_fails_the_payment,
    a_payment_is_charged_once_despite_processor_faults,
    a_payment_outlives_its_record,
    calls_to_the_processor_continue_the_trace,
);

#[cfg(feature = "mysql")]
mod mysql {
    use crate::fixture::TestDatabase;

    #[tokio::test]
    async fn a_payment_is_retried_and_charged_once_on_mariadb() {
        super::every_retry_of_a_payment_gets_the_first_response(TestDatabase::mariadb()).await;
        super::twenty_requests_at_once_make_one_payment(TestDatabase::mariadb()).await;
        super::a_payment_is_charged_once_despite_processor_faults(TestDatabase::mariadb()).await;
    }
}

async fn every_retry_of_a_payment_gets_the_first_response(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "");
    let node = world.node("10s");
    let first = node.post("/payments", "ann", "k", &payment("c", 4200)).await;
    assert_eq!(first.status, 201, "{}", first.text());
    assert_eq!(first.header("idempotent-replayed"), None);
    let made = json(&first);
    let id = made["paymentId"].as_str().expect("an id");
    assert_eq!(made, serde_json::json!({ "paymentId": id, "status": "pending" }));
    assert_eq!(first.header("location"), Some(format!("/payments/{id}")));

    let paid = node.wait_until_settled("ann", id).await;
    assert_eq!((&paid["status"], &paid["amountCents"]), (&"succeeded".into(), &4200.into()));
    assert!(paid["chargeId"].as_str().is_some_and(|charge| !charge.is_empty()), "{paid}");

    let again = node.post("/payments", "ann", "k", &payment("c", 4200)).await;
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert_eq!(again.header("idempotent-replayed").as_deref(), Some("true"));
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!(again.header("idempotency-expires"), first.header("idempotency-expires"));

    let other = node.post("/payments", "ann", "k", &payment("c", 4201)).await;
    assert_eq!(other.status, 422, "{}", other.text());
    let none = node.0.call(&keyless()).await;
    assert_eq!(none.status, 400, "{}", none.text());
    assert_eq!(node.get("/.ibid/keys/k?method=POST&path=/payments", "ann").await.1["state"], "completed");
    assert_eq!(node.get("/.ibid/keys/k?method=POST&path=/payments", "bob").await.0, 404);

    // Also after a restart, because no state is only in the process.
    assert!(node.0.stop());
    let node = world.node("10s");
    assert_eq!(node.post("/payments", "ann", "k", &payment("c", 4200)).await.body, first.body);
    assert_eq!(node.payments("ann", "c").await.len(), 1);
    assert_eq!(world.charged_references().await, [id]);
}

fn keyless() -> ibid_testkit::client::TestRequest {
    ibid_testkit::client::TestRequest::post("/payments")
        .header("Authorization", "Bearer ann")
        .header("Content-Type", "application/json")
        .body(payment("c", 1).to_string())
}

async fn twenty_requests_at_once_make_one_payment(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "");
    let node = world.node("10s");
    let body = payment("c", 500);
    let answers = join_all((0..20).map(|_| node.post("/payments", "ann", "k", &body))).await;
    for answer in &answers {
        assert_eq!((answer.status, &answer.body), (201, &answers[0].body), "{}", answer.text());
    }
    let replays = answers.iter().filter(|answer| answer.header("idempotent-replayed").is_some()).count();
    assert_eq!(replays, 19);
    let id = json(&answers[0])["paymentId"].as_str().expect("an id").to_owned();
    node.wait_until_settled("ann", &id).await;
    assert_eq!(node.payments("ann", "c").await.len(), 1);
    assert_eq!(world.charged_references().await, [id]);
}

async fn refused_input_does_not_use_up_the_key(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "");
    let node = world.node("10s");
    assert_eq!(node.post("/payments", "ann", "k", &payment("c", -1)).await.status, 422);
    let anns = node.post("/payments", "ann", "k", &payment("c", 500)).await;
    assert_eq!(anns.status, 201, "{}", anns.text());
    let bobs = node.post("/payments", "bob", "k", &payment("d", 700)).await;
    assert_eq!((bobs.status, bobs.header("idempotent-replayed")), (201, None), "{}", bobs.text());
    let mut ids = Vec::new();
    for (token, answer) in [("ann", anns), ("bob", bobs)] {
        let id = json(&answer)["paymentId"].as_str().expect("an id").to_owned();
        assert_eq!(node.wait_until_settled(token, &id).await["status"], "succeeded");
        ids.push(id);
    }
    assert_eq!(node.get(&format!("/payments/{}", ids[0]), "bob").await.0, 404);
    ids.sort();
    assert_eq!(world.charged_references().await, ids);
}

async fn a_declined_card_fails_the_payment(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "");
    let node = world.node("10s");
    let made = node.post("/payments", "ann", "k", &payment("c", 1013)).await;
    assert_eq!(made.status, 201);
    let failed = node.wait_until_settled("ann", json(&made)["paymentId"].as_str().expect("an id")).await;
    assert_eq!(failed["status"], "failed");
    assert!(failed["chargeId"].is_string(), "{failed}");
    // A retry still gets the stored response, with `pending`. For the result, the client gets the payment.
    assert_eq!(node.post("/payments", "ann", "k", &payment("c", 1013)).await.body, made.body);
}

async fn a_payment_is_charged_once_despite_processor_faults(database: TestDatabase) {
    let mut database = database;
    for fault in
        ["timeout=first", "reset=first", "error=first", "late=first:300ms", "busy=first", "refuse=first"]
    {
        let world = DatabaseAndProcessor::new(database, fault);
        // A call times out after a third of the lease.
        let node = world.node("3s");
        let made = node.post("/payments", "ann", fault, &payment("c", 500)).await;
        assert_eq!(made.status, 201, "{fault}: {}", made.text());
        let id = json(&made)["paymentId"].as_str().expect("an id").to_owned();
        assert_eq!(node.wait_until_settled("ann", &id).await["status"], "succeeded", "{fault}");
        assert_eq!(world.charged_references().await, [id], "{fault}");
        assert!(node.0.stop(), "{fault}");
        database = world.database;
    }
}

async fn calls_to_the_processor_continue_the_trace(database: TestDatabase) {
    // The processor refuses the first try, so the charge in its list was made by the second.
    let world = DatabaseAndProcessor::new(database, "busy=first");
    let node = world.node("3s");
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (target, body) in [("/payments", payment("c", 500)), ("/rides", ride(700))] {
        let request = post_request(target, "ann", "k", &body).header("traceparent", trace);
        let id = wait_for("the request is done", async || {
            let made = node.0.call(&request).await;
            let made = (made.status == 201).then(|| json(&made))?;
            made["paymentId"].as_str().or(made["rideId"].as_str()).map(str::to_owned)
        })
        .await;
        let charge = wait_for("it is charged", async || {
            let (_, list) = world.provider.get("/charges").await;
            list["charges"].as_array()?.iter().find(|charge| charge["reference"] == id.as_str()).cloned()
        })
        .await;
        // The same trace and flags, but a separate span for the call.
        let sent = charge["traceparent"].as_str().unwrap_or_else(|| panic!("{target}: {charge}"));
        assert_eq!((sent.len(), &sent[..36], &sent[52..]), (55, &trace[..36], &trace[52..]), "{target}");
        assert_ne!(&sent[36..52], &trace[36..52], "{target}");
        assert!(sent[36..52].bytes().all(|digit| digit.is_ascii_hexdigit()), "{target}: {sent}");
    }
    let made = node.post("/payments", "ann", "untraced", &payment("c", 900)).await;
    node.wait_until_settled("ann", json(&made)["paymentId"].as_str().expect("an id")).await;
    let (_, list) = world.provider.get("/charges").await;
    let untraced = list["charges"].as_array().expect("a list").last().cloned().unwrap_or_default();
    assert_eq!((&untraced["amountCents"], untraced.get("traceparent")), (&900.into(), None));
}

async fn a_payment_outlives_its_record(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "");
    let node = world.node("10s");
    let made = node.post("/payments", "ann", "k", &payment("c", 500)).await;
    let id = json(&made)["paymentId"].as_str().expect("an id").to_owned();
    node.wait_until_settled("ann", &id).await;
    assert_eq!(
        world.texts("select 'kept' from payment join ibid_record r on r.id = record_id").await,
        ["kept"]
    );
    assert!(node.0.stop());
    // Pretend that retention and tombstone are over. The effect is done, so it does not keep the record.
    world.texts("update ibid_record set expires_at = 1, purge_at = 1, reap_at = 1 returning 'aged'").await;
    let node = world.node("10s");
    world.wait_for_rows("select 'record' from ibid_record", &[]).await;
    assert_eq!(world.texts("select 'payment' from payment where record_id is null").await, ["payment"]);
    assert_eq!(node.wait_until_settled("ann", &id).await["status"], "succeeded");
}

/// Starts a processor that responds to every charge and every lookup with these status lines.
async fn start_processor(charge: &'static str, lookup: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let read = stream.read(&mut request).await.unwrap_or_default();
            let status = if request[..read].starts_with(b"POST") { charge } else { lookup };
            let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    url
}

/// Starts a node with this processor, makes a payment, and returns its id.
async fn pay_through(world: &DatabaseAndProcessor, provider: &str) -> (Node, String) {
    let store = world.database.url();
    let node = Node(Program::start(&["--store", &store, "--provider", provider]));
    let made = node.post("/payments", "ann", "k", &payment("c", 500)).await;
    let id = json(&made)["paymentId"].as_str().expect("an id").to_owned();
    (node, id)
}

#[tokio::test]
async fn a_charge_that_is_certainly_refused_fails_its_payment() {
    let world = DatabaseAndProcessor::new(TestDatabase::sqlite(), "");
    let provider = start_processor("400 Bad Request", "404 Not Found").await;
    let (node, id) = pay_through(&world, &provider).await;
    let failed = node.wait_until_settled("ann", &id).await;
    assert_eq!((&failed["status"], &failed["chargeId"]), (&"failed".into(), &serde_json::Value::Null));
}

#[tokio::test]
async fn a_payment_with_an_uncertain_charge_stays_pending() {
    let world = DatabaseAndProcessor::new(TestDatabase::sqlite(), "");
    let provider = start_processor("401 Unauthorized", "401 Unauthorized").await;
    let (node, id) = pay_through(&world, &provider).await;
    // 5 is `dead`.
    world.wait_for_rows("select state from ibid_effects", &["dead"]).await;
    assert_eq!(node.get(&format!("/payments/{id}"), "ann").await.1["status"], "pending");
}
