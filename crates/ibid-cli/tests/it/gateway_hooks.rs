//! Webhooks over real sockets, signed by the reference library and by hand: they settle unknown records and nothing
//! else.

use std::time::{SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit as _, Mac as _};
use ibid_testkit::client::{TestRequest, TestResponse};
use ibid_testkit::upstream::Upstream;
use serde_json::{Value, json};
use sha2::Sha256;
use standardwebhooks::Webhook;

use crate::harness::{Gateway, On, Setup, assert_problem, bare, is_replay, on_every_store, until_async};

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const OLD_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const STRIPE_SECRET: &str = "whsec_as_stripe_hands_them_out";
const PLAIN_SECRET: &str = "a plain secret of some length";

const CONFIG: &str = r#"
[[hook]]
name = "psp"
match = "POST /payments"
scheme = "standard"
secrets = ["env:PSP_SECRET", "file:old-secret"]
tenant = "/data/metadata/tenant"
key = "/data/key"
outcome = "/type"
executed = ["payment.succeeded", "payment.declined"]
not_executed = ["payment.never_created"]
status = 201
statuses = { "payment.declined" = 402 }
body = "/data/payment"
event_time = "/timestamp"

[[hook]]
name = "stripe"
match = "POST /payments"
scheme = "stripe"
secrets = ["whsec_as_stripe_hands_them_out"]
tenant = "/data/object/metadata/tenant"
key = "/data/object/metadata/key"
outcome = "/type"
executed = ["charge.succeeded"]

[[hook]]
name = "plain"
match = "POST /payments"
scheme = "hmac"
secrets = ["a plain secret of some length"]
header = "x-hub-signature-256"
prefix = "sha256="
timestamp = "none"
tenant = "/tenant"
key = "/key"
outcome = "/paid"
executed = ["true"]
event = "/delivery"
"#;

fn setup(upstream: &Upstream, on: On) -> Setup {
    let setup = Setup::before(&upstream.url()).tenant("header:x-tenant-id").config(CONFIG).on(on);
    std::fs::write(setup.folder().join("old-secret"), format!("{OLD_SECRET}\n")).expect("a file");
    setup.variable("PSP_SECRET", SECRET)
}

fn pay(key: &str, fixture: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).header("X-Tenant-Id", "ann").body("five").fixture(fixture)
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64
}

/// A correct webhook of the source `psp`.
#[derive(Clone)]
struct TestWebhook {
    event: String,
    secret: &'static str,
    signed_at: i64,
    body: Value,
}

fn webhook(event: &str, kind: &str, key: &str) -> TestWebhook {
    let payment = json!({ "id": "pay_1", "state": kind });
    let data = json!({ "key": key, "payment": payment, "metadata": { "tenant": "ann" } });
    let body = json!({ "type": kind, "timestamp": now(), "data": data });
    TestWebhook { event: event.to_owned(), secret: SECRET, signed_at: now(), body }
}

impl TestWebhook {
    fn request(&self) -> TestRequest {
        self.request_to("psp")
    }

    fn request_to(&self, source: &str) -> TestRequest {
        let body = self.body.to_string();
        let signer = Webhook::new(self.secret).expect("a secret");
        let signature = signer.sign(&self.event, self.signed_at, body.as_bytes()).expect("a signature");
        TestRequest::post(&format!("/.ibid/hooks/{source}"))
            .header("webhook-id", &self.event)
            .header("webhook-timestamp", self.signed_at.to_string())
            .header("webhook-signature", signature)
            .body(body)
    }

    async fn to(&self, gateway: &Gateway) -> (u16, String) {
        result(&gateway.call(&self.request()).await)
    }
}

fn result(response: &TestResponse) -> (u16, String) {
    let body: Value = serde_json::from_slice(&response.body).expect("JSON");
    (response.status, body["result"].as_str().unwrap_or_default().to_owned())
}

fn word(status: u16, word: &str) -> (u16, String) {
    (status, word.to_owned())
}

fn hex(secret: &str, message: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("a key of any length");
    mac.update(message.as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn unknown(gateway: &Gateway, key: &str) {
    assert_problem(&gateway.call(&pay(key, "cut=read")).await, 502, "outcome-unknown");
    assert_problem(&gateway.call(&pay(key, "cut=read")).await, 409, "outcome-unknown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn signed_webhooks_settle_unknown_records_of_the_gateway() {
    let upstream = Upstream::start().await;
    // Short times, so that an attempt is over soon.
    let config = format!("[defaults]\nupstream_timeout = \"3s\"\nlinger = \"0s\"\n{CONFIG}");
    let setup = setup(&upstream, On::Sqlite).config(&config);
    let gateway = setup.start();
    unknown(&gateway, "paid").await;
    assert_eq!(webhook("evt_1", "payment.succeeded", "paid").to(&gateway).await, word(200, "settled"));
    let retry = gateway.call(&pay("paid", "cut=read")).await;
    assert!(is_replay(&retry) && retry.status == 201, "{retry:?}");
    assert_eq!(retry.text(), r#"{"id":"pay_1","state":"payment.succeeded"}"#);

    unknown(&gateway, "declined").await;
    let declined = TestWebhook { secret: OLD_SECRET, ..webhook("evt_2", "payment.declined", "declined") };
    assert_eq!(declined.to(&gateway).await, word(200, "settled"), "the old secret still counts");
    assert_eq!(declined.to(&gateway).await, word(200, "settled already"), "and does nothing again");
    let retry = gateway.call(&pay("declined", "status=201")).await;
    assert!(is_replay(&retry) && retry.status == 402, "{retry:?}");

    unknown(&gateway, "void").await;
    let early = webhook("evt_3", "payment.never_created", "void");
    // The age is rounded up, so the event counts as one during the attempt or before it.
    let is_early = |(status, word): (u16, String)| status == 200 && (word == "premature" || word == "stale");
    assert!(is_early(early.to(&gateway).await), "the delivery might still run");
    let mut tries = 0;
    let void = until_async("the attempt is over", async || {
        tries += 1;
        let void = webhook(&format!("evt_3_{tries}"), "payment.never_created", "void");
        let answer = void.to(&gateway).await;
        let is_settled = answer == word(200, "settled");
        assert!(is_settled || is_early(answer), "nothing else comes of it");
        is_settled.then_some(void)
    });
    let void = void.await;
    unknown(&gateway, "void").await;
    assert_eq!(void.to(&gateway).await, word(200, "stale"), "it never settles the second attempt");
    assert_problem(&gateway.call(&pay("void", "status=201")).await, 409, "outcome-unknown");

    assert_eq!(webhook("evt_4", "payment.created", "void").to(&gateway).await, word(200, "ignored"));
    let count =
        async |outcome: &str| gateway.metric("ibid_hooks_total", &format!("outcome=\"{outcome}\"")).await;
    assert_eq!((count("accepted").await, count("known").await), (3.0, 1.0));
    assert_eq!(count("ignored").await, 1.0);
    assert_eq!(upstream.deliveries_begun(), 4, "nothing was sent again but what was proven not executed");
}

on_every_store!(an_early_webhook_settles_the_record_once_it_is_unknown and mysql and redis);
async fn an_early_webhook_settles_the_record_once_it_is_unknown(on: On) {
    let upstream = Upstream::start().await;
    let setup = setup(&upstream, on);
    let gateway = setup.start();
    let mut client = gateway.client().await;
    client.send(&pay("early", "gate;cut=read")).await;
    upstream.until(|tally| tally.held == 1).await;
    assert_eq!(webhook("evt_1", "payment.declined", "early").to(&gateway).await, word(202, "kept"));
    upstream.gate().open();
    assert_problem(&client.read().await.expect("an answer"), 502, "outcome-unknown");
    let retry = until_async("it is settled without asking", async || {
        let retry = gateway.call(&pay("early", "status=201")).await;
        (retry.status != 409).then_some(retry)
    });
    let retry = retry.await;
    assert!(is_replay(&retry) && retry.status == 402, "{retry:?}");
    assert_eq!(upstream.deliveries_begun(), 1);
    assert_eq!(gateway.metric("ibid_hooks_total", "outcome=\"early\"").await, 1.0);
}

#[tokio::test]
async fn a_stale_forged_or_foreign_webhook_settles_nothing() {
    let upstream = Upstream::start().await;
    let gateway = setup(&upstream, On::Sqlite).start();
    unknown(&gateway, "k").await;
    let good = webhook("evt_1", "payment.succeeded", "k");
    let refused = [
        TestWebhook { secret: "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", ..good.clone() }.request(),
        TestWebhook { signed_at: now() - 310, ..good.clone() }.request(),
        good.request().body(good.body.to_string().replace("pay_1", "pay_2")),
        TestRequest::post("/.ibid/hooks/psp").body(good.body.to_string()),
        TestRequest::post("/.ibid/hooks/other").body(good.body.to_string()),
    ];
    let mut bodies = Vec::new();
    for request in &refused {
        let response = gateway.call(request).await;
        assert_problem(&response, 401, "hook-refused");
        bodies.push(response.text());
    }
    assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");
    let mut old = good.clone();
    old.body["timestamp"] = json!(now() - 3600);
    assert_eq!(old.to(&gateway).await, word(200, "stale"), "it happened before the attempt began");
    let mut other = good.clone();
    other.body["data"]["metadata"]["tenant"] = json!("bob");
    assert_eq!(other.to(&gateway).await, word(202, "kept"), "bob has no such record");
    assert_problem(&gateway.call(&pay("k", "status=201")).await, 409, "outcome-unknown");
    assert_eq!(gateway.metric("ibid_hooks_total", "outcome=\"refused\"").await, 5.0);
    let logged = gateway.log();
    assert!(!logged.contains("whsec") && !logged.contains("pay_1"), "{logged}");
    assert_eq!(upstream.deliveries_begun(), 1);
}

#[tokio::test]
async fn the_other_schemes_are_accepted_as_their_sources_sign() {
    let upstream = Upstream::start().await;
    let gateway = setup(&upstream, On::Sqlite).start();
    unknown(&gateway, "s").await;
    let metadata = json!({ "tenant": "ann", "key": "s" });
    let event =
        json!({ "id": "evt_1", "type": "charge.succeeded", "data": { "object": { "metadata": metadata } } });
    let (body, at) = (event.to_string(), now());
    let line = format!("t={at},v1={},v1={}", "0".repeat(64), hex(STRIPE_SECRET, &format!("{at}.{body}")));
    let request = TestRequest::post("/.ibid/hooks/stripe").header("Stripe-Signature", line).body(&body);
    assert_eq!(result(&gateway.call(&request).await), word(200, "settled"));
    let retry = gateway.call(&pay("s", "cut=read")).await;
    assert_eq!((retry.status, retry.text()), (200, body), "the whole payload is the answer");

    unknown(&gateway, "p").await;
    let body = json!({ "delivery": 17, "tenant": "ann", "key": "p", "paid": true }).to_string();
    let signed = |body: &str| format!("sha256={}", hex(PLAIN_SECRET, body));
    let request =
        TestRequest::post("/.ibid/hooks/plain").header("X-Hub-Signature-256", signed(&body)).body(&body);
    assert_eq!(result(&gateway.call(&request).await), word(200, "settled"));
    let forged = request.body(body.replace("17", "18"));
    assert_problem(&gateway.call(&forged).await, 401, "hook-refused");
}

#[tokio::test]
async fn evidence_from_before_a_crash_settles_the_lapsed_record() {
    let upstream = Upstream::start().await;
    let config = format!("[defaults]\nlease = \"1s\"\n[upkeep]\nsweep_every = \"200ms\"\n{CONFIG}");
    let setup = setup(&upstream, On::Sqlite).config(&config);
    let mut gateway = setup.start();
    let mut client = gateway.client().await;
    client.send(&pay("k", "gate;status=201")).await;
    upstream.until(|tally| tally.held == 1).await;
    assert_eq!(webhook("evt_1", "payment.succeeded", "k").to(&gateway).await, word(202, "kept"));
    gateway.kill();
    let gateway = setup.start();
    let retry = until_async("the lapsed record is settled", async || {
        let retry = gateway.call(&pay("k", "status=500").header("Prefer", "wait=0")).await;
        (retry.status != 409).then_some(retry)
    });
    let retry = retry.await;
    assert!(is_replay(&retry) && retry.status == 201, "{retry:?}");
    assert_eq!(upstream.deliveries_begun(), 1);
}

#[tokio::test]
async fn an_unsafe_hook_is_refused_at_start() {
    let upstream = Upstream::start().await;
    let refused = |line: &str, instead: &str| {
        assert!(CONFIG.contains(line), "{line}");
        setup(&upstream, On::Sqlite).config(&CONFIG.replacen(line, instead, 1)).expect_refusal()
    };
    let assert_refused = |line: &str, instead: &str, words: &str| {
        let refused = refused(line, instead);
        assert!(refused.code == 2 && refused.output.contains(words), "`{words}` in {refused:?}");
        assert!(!refused.output.contains("a plain secret of some length"), "{refused:?}");
    };
    assert_refused("tenant = \"/tenant\"\n", "", "a hook must say whose record");
    assert_refused("timestamp = \"none\"\n", "", "which field says when it was signed?");
    assert_refused("event = \"/delivery\"\n", "", "needs a pointer to the event's id");
    assert_refused(
        "event_time = \"/timestamp\"\n",
        "",
        "needs a pointer to the event's instant (`event_time`)",
    );
    assert_refused("\"env:PSP_SECRET\"", "\"env:NO_SUCH_SECRET\"", "`NO_SUCH_SECRET`, which is not set");
    assert_refused("\"file:old-secret\"", "\"file:no-such-file\"", "`no-such-file`, which can't be read");
    assert_refused(
        "match = \"POST /payments\"",
        "match = \"POST /payments/{id}\"",
        "must name one operation",
    );
    assert_refused("match = \"POST /payments\"", "match = \"PUT /payments\"", "not guarded");
    assert_refused("\"payment.declined\" = 402", "\"payment.declind\" = 402", "is not among `executed`");
    assert_refused(
        "prefix = \"sha256=\"",
        "prefix = \"sha256=\"\nbogus = 1",
        "`bogus` is not a key of `[[hook]]`",
    );
    let one = CONFIG.replace("tenant = \"/tenant\"\n", "");
    let gateway = setup(&upstream, On::Sqlite).tenant("none").config(&one).start();
    assert_eq!(gateway.page("/metrics").await.status, 200, "with one tenant it need not be named");
}

/// Configuration of a service whose outbox makes the calls, in the same database.
const ON_EFFECTS: &str = r#"
[[hook]]
name = "calls"
scheme = "standard"
secrets = ["env:PSP_SECRET"]
downstream_key = "/data/key"
kind = "charge"
provider_id = "/data/id"
outcome = "/type"
executed = ["charge.succeeded"]
body = "/data"
"#;

on_every_store!(a_webhook_on_an_effect_needs_no_tenant and mysql);
async fn a_webhook_on_an_effect_needs_no_tenant(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).tenant("header:x-tenant-id").config(ON_EFFECTS).on(on);
    let setup = setup.variable("PSP_SECRET", SECRET);
    let gateway = setup.start();
    let send = async |event: &str, data: Value| {
        let body = json!({ "type": "charge.succeeded", "data": data });
        let webhook = TestWebhook { event: event.to_owned(), secret: SECRET, signed_at: now(), body };
        result(&gateway.call(&webhook.request_to("calls")).await)
    };
    let ours = json!({ "key": "ibid-00112233445566778899aabbccddeeff", "id": "ch_1" });
    assert_eq!(send("evt_1", ours).await, word(202, "kept"), "its effect may be in an open transaction");
    assert_eq!(send("evt_2", json!({ "key": "theirs", "id": "ch_2" })).await, word(202, "kept"));
    assert_eq!(send("evt_3", json!({ "key": "theirs" })).await.0, 422, "it names nothing");
    assert_eq!(gateway.metric("ibid_hooks_total", "outcome=\"early\"").await, 2.0);
}

#[tokio::test]
async fn a_hook_without_a_target_is_refused_at_start() {
    let upstream = Upstream::start().await;
    let start = || Setup::before(&upstream.url()).tenant("header:x-tenant-id").variable("PSP_SECRET", SECRET);
    let without = |lines: &[&str]| {
        lines.iter().fold(ON_EFFECTS.to_owned(), |text, line| {
            assert!(text.contains(line), "{line}");
            text.replacen(line, "", 1)
        })
    };
    let assert_refused = |config: &str, words: &str| {
        let refused = start().config(config).expect_refusal();
        assert!(refused.code == 2 && refused.output.contains(words), "`{words}` in {refused:?}");
    };
    let (key, kind, id) =
        ("downstream_key = \"/data/key\"\n", "kind = \"charge\"\n", "provider_id = \"/data/id\"\n");
    assert_refused(&without(&[key, kind, id]), "what the payload speaks of: a record or an effect");
    assert_refused(&without(&[key, kind]), "what the payload speaks of: a record or an effect");
    assert_refused(&without(&[id]), "`provider_id` is missing");
    assert_refused(&without(&[key, id]), "`provider_id` is missing");
    assert_refused(&ON_EFFECTS.replace("\"charge\"", "\"\""), "must name their kind");
    assert_refused(
        &format!("{ON_EFFECTS}match = \"POST /payments\"\n"),
        "records or of effects, not of both",
    );
    assert_refused(&format!("{ON_EFFECTS}tenant = \"/data/tenant\"\n"), "records or of effects, not of both");
    let memory = start().store_at("memory:").config(ON_EFFECTS).expect_refusal();
    assert!(memory.code == 2 && memory.output.contains("the store has no outbox"), "{memory:?}");
    for (config, what) in [
        (ON_EFFECTS.to_owned(), "effects found by their key, or of kind `charge` by the provider's id"),
        (without(&[kind]), "effects found by their key"),
        (without(&[key]), "effects of kind `charge` found by the provider's id"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(
            folder.path().join("ibid.toml"),
            format!("upstream = \"http://localhost:1\"\n[tenant]\nfrom = \"none\"\n{config}"),
        )
        .expect("a file");
        let checked = bare(folder.path()).args(["config", "check"]).env("PSP_SECRET", SECRET).output();
        let checked = String::from_utf8(checked.expect("it runs").stdout).expect("text");
        assert!(checked.contains(&format!("\n  {what} by `/.ibid/hooks/calls`\n")), "{checked}");
    }
}

/// The simulated processor behind the gateway makes each charge, resets the connection, and reports the charge by a
/// webhook.
#[tokio::test]
async fn a_webhook_settles_a_charge_whose_response_was_reset() {
    use ibid_testkit::processor::{CardProcessor, ChargeFaults, ProcessorOptions, WebhookSecret};

    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let upstream = format!("http://{}", listener.local_addr().expect("an address"));
    let config = r#"
[[hook]]
name = "processor"
match = "POST /charges"
scheme = "standard"
secrets = ["env:PSP_SECRET"]
key = "/data/idempotencyKey"
outcome = "/type"
executed = ["charge.succeeded", "charge.declined"]
statuses = { "charge.declined" = 402 }
body = "/data"
provider_id = "/data/chargeId"
"#;
    let gateway = Setup::before(&upstream).config(config).variable("PSP_SECRET", SECRET).start();
    let secret = WebhookSecret::parse(SECRET).expect("a secret");
    let options = ProcessorOptions {
        faults: ChargeFaults::parse("reset=first").expect("faults"),
        webhook: Some((gateway.addr(), "/.ibid/hooks/processor".to_owned(), secret)),
        ..ProcessorOptions::default()
    };
    let _processor = CardProcessor::start_on(listener, options);
    for (key, amount, status) in [("pays", 500, 200), ("declines", 613, 402)] {
        let body = json!({ "amountCents": amount, "currency": "EUR", "customerId": "c" }).to_string();
        let charge =
            TestRequest::post("/charges").key(key).header("Content-Type", "application/json").body(body);
        assert_problem(&gateway.call(&charge).await, 502, "outcome-unknown");
        let retry = until_async("the processor's word settles it", async || {
            let retry = gateway.call(&charge).await;
            (retry.status != 409).then_some(retry)
        });
        let retry = retry.await;
        assert!(is_replay(&retry) && retry.status == status, "{retry:?}");
        let charge: Value = serde_json::from_slice(&retry.body).expect("a charge");
        assert_eq!((&charge["idempotencyKey"], &charge["amountCents"]), (&json!(key), &json!(amount)));
    }
}
