//! The API: authentication, validation before a key is used up, and the visibility of payments.

use std::io::Read as _;
use std::process::{Command, Stdio};

use ibid_testkit::client::{TestRequest, TestResponse};
use serde_json::Value;

use crate::fixture::{Node, TestDatabase, json, payment};
use crate::harness::Program;

/// A node on a separate SQLite file. No processor listens on its provider address, so no payment is charged.
struct Api {
    program: Node,
    _database: TestDatabase,
}

impl Api {
    fn start(more: &[&str]) -> Api {
        let database = TestDatabase::sqlite();
        let store = database.url();
        let args = [&["--store", &store, "--provider", "http://127.0.0.1:1"], more].concat();
        Api { program: Node(Program::start(&args)), _database: database }
    }

    async fn get(&self, target: &str, token: &str) -> (u16, Value) {
        self.program.get(target, token).await
    }

    async fn post(&self, target: &str, body: &str) -> TestResponse {
        let request = TestRequest::post(target)
            .header("Authorization", "Bearer ann")
            .header("Content-Type", "application/json")
            .key("k")
            .body(body);
        self.program.0.call(&request).await
    }

    /// Makes a payment, which stays `pending`, and returns its id.
    async fn pay(&self, token: &str, customer: &str, key: &str) -> String {
        let made = self.program.post("/payments", token, key, &payment(customer, 4200)).await;
        assert_eq!(made.status, 201, "{}", made.text());
        json(&made)["paymentId"].as_str().expect("an id").to_owned()
    }
}

fn fields(answer: &TestResponse) -> Vec<String> {
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert_eq!(answer.header("content-type").as_deref(), Some("application/problem+json"));
    let errors = json(answer)["errors"].as_array().expect("errors").clone();
    errors.iter().map(|error| error["field"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn requests_without_a_token_get_401() {
    let api = Api::start(&[]);
    for request in [TestRequest::get("/payments?customerId=c"), TestRequest::post("/payments").body("{}")] {
        let answer = api.program.0.call(&request).await;
        assert_eq!(answer.status, 401);
        assert_eq!(answer.header("www-authenticate").as_deref(), Some("Bearer"));
        assert_eq!(answer.header("content-type").as_deref(), Some("application/problem+json"));
    }
    assert_eq!(api.program.0.get_json("/health").await, (200, serde_json::json!({ "status": "ok" })));
    assert_eq!(api.program.0.get_json("/elsewhere").await.0, 404);
}

#[tokio::test]
async fn only_listed_tokens_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("accounts");
    std::fs::write(&list, "sk_1 = ann\nsk_2 = ann\nsk_3 = bob\n").unwrap();
    let api = Api::start(&["--accounts", list.to_str().unwrap()]);
    for (token, status) in [("sk_1", 200), ("sk_2", 200), ("sk_3", 200), ("sk_4", 401), ("ann", 401)] {
        assert_eq!(api.get("/payments?customerId=c", token).await.0, status, "{token}");
    }
}

#[tokio::test]
async fn keys_belong_to_the_account_not_to_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("accounts");
    std::fs::write(&list, "sk_1 = ann\nsk_2 = ann\nsk_3 = bob\n").unwrap();
    let api = Api::start(&["--accounts", list.to_str().unwrap()]);
    let pay = async |token, amount| api.program.post("/payments", token, "k", &payment("c", amount)).await;
    let replayed = |answer: &TestResponse| answer.header("idempotent-replayed").is_some();
    let first = pay("sk_1", 4200).await;
    assert_eq!((first.status, replayed(&first)), (201, false), "{}", first.text());
    let again = pay("sk_2", 4200).await;
    assert_eq!((again.status, replayed(&again), &again.body), (201, true, &first.body), "{}", again.text());
    let other = pay("sk_3", 4200).await;
    assert_eq!((other.status, replayed(&other)), (201, false), "{}", other.text());

    let id = |answer: &TestResponse| json(answer)["paymentId"].as_str().expect("an id").to_owned();
    assert_ne!(id(&other), id(&first));
    for (token, own, foreign) in
        [("sk_1", &first, &other), ("sk_2", &first, &other), ("sk_3", &other, &first)]
    {
        let listed = api.program.payments(token, "c").await;
        let listed: Vec<_> = listed.iter().map(|payment| &payment["paymentId"]).collect();
        assert_eq!(listed, [&*id(own)], "{token}");
        assert_eq!(api.get(&format!("/payments/{}", id(own)), token).await.0, 200, "{token}");
        assert_eq!(api.get(&format!("/payments/{}", id(foreign)), token).await.0, 404, "{token}");
    }
    // The key is used up for the account, whichever of its tokens sends another payment, and for no other account.
    assert_eq!(pay("sk_2", 4300).await.status, 422);
    let page = "/.ibid/keys/l?method=POST&path=/payments";
    api.program.post("/payments", "sk_1", "l", &payment("c", 1)).await;
    for (token, status) in [("sk_1", 200), ("sk_2", 200), ("sk_3", 404)] {
        assert_eq!(api.get(page, token).await.0, status, "{token}");
    }
}

#[tokio::test]
async fn a_node_without_accounts_logs_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("accounts");
    std::fs::write(&list, "sk_1 = ann\n").unwrap();
    let start_log = |more: &[&str]| {
        let database = TestDatabase::sqlite();
        let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
        command.args(["--store", &database.url(), "--provider", "http://127.0.0.1:1"]).args(more);
        command.stderr(Stdio::piped());
        let mut node = Program::from_command(command);
        let mut stderr = node.stderr();
        assert!(node.stop());
        let mut log = String::new();
        stderr.read_to_string(&mut log).expect("its log is read");
        log
    };
    let warning = "no --accounts: each token is a separate account; use this for trials only";
    let (without, with) = (start_log(&[]), start_log(&["--accounts", list.to_str().unwrap()]));
    assert!(without.lines().any(|line| line.contains("WARN") && line.contains(warning)), "{without}");
    assert!(with.contains("ready") && !with.contains("a separate account"), "{with}");
}

#[tokio::test]
async fn bad_input_is_refused_with_its_fields_named() {
    let api = Api::start(&[]);
    for (body, named) in [
        ("{}", vec!["customerId", "amountCents", "currency"]),
        (r#"{"customerId":"c","amountCents":-5,"currency":"EUR"}"#, vec!["amountCents"]),
        (r#"{"customerId":"c","amountCents":1.5,"currency":"EUR"}"#, vec!["amountCents"]),
        (r#"{"customerId":"c","amountCents":9223372036854775808,"currency":"EUR"}"#, vec!["amountCents"]),
        (r#"{"customerId":"c","amountCents":5,"currency":"XXX"}"#, vec!["currency"]),
        (r#"{"customerId":"c","amountCents":5,"currency":"EUR","amount":5}"#, vec!["amount"]),
    ] {
        assert_eq!(fields(&api.post("/payments", body).await), named, "{body}");
    }
    let ride = r#"{"customerId":"c","amountCents":5,"currency":"EUR","origin":7}"#;
    assert_eq!(fields(&api.post("/rides", ride).await), ["origin", "destination"]);
    assert_eq!(api.post("/payments", "{").await.status, 400);
    assert_eq!(api.post("/payments", &" ".repeat(20_000)).await.status, 413);
}

#[tokio::test]
async fn an_account_sees_only_its_own_payments() {
    let api = Api::start(&[]);
    let id = api.pay("ann", "c", "k").await;
    let (status, body) = api.get(&format!("/payments/{id}"), "ann").await;
    assert_eq!(status, 200);
    assert_eq!(
        (&body["paymentId"], &body["status"], &body["amountCents"]),
        (&id.into(), &"pending".into(), &4200.into())
    );
    assert!(body["createdAt"].as_str().unwrap().ends_with('Z'));
    let id = body["paymentId"].as_str().unwrap();
    assert_eq!(api.get(&format!("/payments/{id}"), "bob").await.0, 404);
    for odd in ["pay_1", "%00", "%ff", &id.to_uppercase()] {
        let status = api.get(&format!("/payments/{odd}"), "ann").await.0;
        assert!(matches!(status, 400 | 404), "{odd}: {status}");
    }
    assert_eq!(api.get("/payments?customerId=c", "bob").await.1["payments"], Value::Array(vec![]));
}

#[tokio::test]
async fn a_list_has_the_newest_payment_first() {
    let api = Api::start(&[]);
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.insert(0, api.pay("ann", "c d", &format!("k{n}")).await);
    }
    api.pay("ann", "other", "k").await;
    let listed = api.program.payments("ann", "c%20d").await;
    let listed: Vec<_> = listed.iter().map(|payment| payment["paymentId"].as_str().unwrap()).collect();
    assert_eq!(listed, ids);
    for query in ["", "?customerId=%00"] {
        let (status, body) = api.get(&format!("/payments{query}"), "ann").await;
        assert!((400..500).contains(&status), "{query}: {status} {body}");
    }
}

#[tokio::test]
async fn sigterm_ends_a_node_with_success() {
    let api = Api::start(&[]);
    assert_eq!(api.program.0.get_json("/health").await.0, 200);
    assert!(api.program.0.stop());
}

#[tokio::test]
async fn two_nodes_may_start_at_once_on_one_postgres() {
    let database = TestDatabase::postgres();
    let store = database.url();
    let start = || Program::start(&["--store", &store, "--provider", "http://127.0.0.1:1"]);
    let nodes = std::thread::scope(|scope| {
        let nodes = [scope.spawn(start), scope.spawn(start)];
        nodes.map(|node| Node(node.join().expect("a node starts")))
    });
    let made = nodes[0].post("/payments", "ann", "k", &payment("c", 4200)).await;
    let id = json(&made)["paymentId"].as_str().expect("an id").to_owned();
    for node in &nodes {
        assert_eq!(node.0.get_json("/health").await.0, 200);
        assert_eq!(node.get(&format!("/payments/{id}"), "ann").await.1["paymentId"], *id);
        assert_eq!(node.get(&format!("/payments/{id}"), "bob").await.0, 404);
        assert_eq!(node.payments("ann", "c").await.len(), 1);
        for odd in ["/payments?customerId=%00", "/payments/%00"] {
            assert!((400..500).contains(&node.get(odd, "ann").await.0), "{odd}");
        }
    }
    for node in nodes {
        assert!(node.0.stop());
    }
}
