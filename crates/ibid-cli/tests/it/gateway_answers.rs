//! Which request a stored answer belongs to, and what of it a retry is given.

use ibid_testkit::client::Request;
use ibid_testkit::upstream::Upstream;

use crate::harness::{Setup, assert_problem, is_replay};

fn pay(key: &str) -> Request {
    Request::post("/payments").key(key).body("{}").header("Content-Type", "application/json")
}

#[tokio::test]
async fn another_stripe_account_never_gets_the_first_ones_answer() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).config("[defaults]\nprofile = \"stripe\"\n");
    let gateway = setup.start();
    let of = |account| pay("order-1").header("Stripe-Account", account).fixture("status=201;body=paid");
    assert_eq!(gateway.call(&of("acct_1")).await.status, 201);
    let other = gateway.call(&of("acct_2")).await;
    assert!(other.status == 400 && other.text().contains("idempotency_error"), "{other:?}");
    assert!(is_replay(&gateway.call(&of("acct_1")).await));
    assert_eq!(upstream.deliveries_begun(), 1);
}

#[tokio::test]
async fn a_field_that_names_another_operation_makes_another_request() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).start();
    let fields =
        ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "SOAPAction", "X-Amz-Target"];
    for name in fields {
        let of = |value| pay(name).header(name, value).fixture("status=201;body=done");
        assert_eq!(gateway.call(&of("PUT")).await.status, 201, "{name}");
        assert_problem(&gateway.call(&of("DELETE")).await, 422, "key-reused");
        assert_problem(&gateway.call(&pay(name)).await, 422, "key-reused");
        assert!(is_replay(&gateway.call(&of("PUT")).await), "{name}");
    }
    assert_eq!(upstream.deliveries_begun(), fields.len());
}
