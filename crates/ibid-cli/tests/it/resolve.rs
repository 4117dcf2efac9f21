//! An operator at the command line, while a gateway runs on the same store.

use std::process::Output;

use ibid_core::effect::EffectRules;
use ibid_testkit::client::TestRequest;
use ibid_testkit::upstream::Upstream;
use serde_json::Value;

use crate::harness::{Gateway, On, Setup, assert_problem, is_replay, on_every_store, until_async};

fn pay(key: &str, fixture: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five").fixture(fixture)
}

fn run(setup: &Setup, words: &[&str]) -> (i32, String, String) {
    let store = setup.store();
    let mut all = words.to_vec();
    all.extend(["--store", &store]);
    let Output { status, stdout, stderr } = setup.ibid(&all);
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

/// Attempts whose time is over soon, so that an unknown record becomes a dead letter soon.
pub(crate) const HASTY: &str = "[defaults]\nupstream_timeout = \"500ms\"\nlinger = \"0s\"\n";

/// Waits until the only unknown record is a dead letter.
async fn until_dead_letter(setup: &Setup) {
    until_async("its attempt's time is over", async || {
        let (_, out, _) = run(setup, &["keys", "list", "--dead-letters", "--json"]);
        (out.trim() != "[]").then_some(())
    })
    .await;
}

/// Returns the first digits of the id of the only record in this list.
fn only_id(setup: &Setup, words: &[&str]) -> String {
    let (code, out, stderr) = run(setup, &[&["keys", "list", "--json"], words].concat());
    assert_eq!(code, 0, "{stderr}");
    let all: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(all.as_array().map(Vec::len), Some(1), "{out}");
    all[0]["id"].as_str().expect("an id")[..8].to_owned()
}

/// Routes whose requests fail permanently when their lease lapses, with a short lease.
pub(crate) const FAILS: &str = "[upkeep]\nsweep_every = \"100ms\"\n[[route]]\nmatch = \"POST /payments\"\n\
                                lease = \"1s\"\nmax_run = \"1s\"\non_lapse = \"fail\"\n";

async fn lost(gateway: &Gateway, key: &str) {
    assert_problem(&gateway.call(&pay(key, "cut=read")).await, 502, "outcome-unknown");
}

/// Inserts a dead effect of this record into the outbox and returns its number.
pub(crate) fn dead_effect(setup: &Setup, record: &str, name: &str) -> i64 {
    let bytes = |at: usize| u8::from_str_radix(&record[at..at + 2], 16).expect("hex digits");
    let id: Vec<u8> = (0..record.len()).step_by(2).map(bytes).collect();
    let connection = rusqlite::Connection::open(setup.database()).expect("the file opens");
    connection.busy_timeout(std::time::Duration::from_secs(10)).expect("a time-out can be set");
    let call =
        "insert into ibid_effect_call (record, birth, name, owes, letter, downstream_key, rules, payload)
        values (?1, 1, ?2, 0, 0, 'k', ?3, x'')";
    connection.execute(call, rusqlite::params![id, name, EffectRules::default().to_json()]).expect("a row");
    let seq = connection.last_insert_rowid();
    let effect = "insert into ibid_effect (seq, count, nonce, kind, state, blocked, dead_letter, tries, lease_us, created_at,
        tenant) values (?1, 1, 7, 'charge', 5, 0, 1, 3, 60000000, 1, '-')";
    connection.execute(effect, [seq]).expect("a row");
    seq
}

async fn an_operator_resolves_a_record_by_an_id_prefix(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on).config(HASTY);
    let gateway = setup.start();
    lost(&gateway, "k").await;
    until_dead_letter(&setup).await;
    let id =
        only_id(&setup, &["--dead-letters", "--route", "/{any}", "--older-than", "0s", "--method", "post"]);
    let words =
        ["keys", "resolve", &id, "--status", "201", "--body", "by hand", "--content-type", "text/plain"];
    let because = ["--reason", "the bank has it", "--who", "ann"];
    let (code, out, stderr) = run(&setup, &[&words[..], &because].concat());
    assert_eq!(code, 1, "{stderr}");
    assert!(out.contains(&id) && out.contains("unknown (dead letter)"), "what it is about: {out}");
    assert!(stderr.contains("would be resolved as executed (201), by ann: the bank has it"), "{stderr}");
    assert!(stderr.contains("error: nothing was done yet") && stderr.contains("--yes"), "{stderr}");
    assert_problem(&gateway.call(&pay("k", "status=201")).await, 409, "outcome-unknown");

    let (code, out, stderr) = run(&setup, &[&words[..], &because, &["--yes"]].concat());
    assert_eq!(
        (code, out.as_str()),
        (0, format!("{id}: resolved as executed (201), now completed\n").as_str()),
        "{stderr}"
    );
    let retry = gateway.call(&pay("k", "status=500")).await;
    assert_eq!((retry.status, retry.text().as_str(), is_replay(&retry)), (201, "by hand", true));
    assert_eq!(upstream.executions("k"), 1);
    let (_, out, _) = run(&setup, &["keys", "show", &id]);
    assert!(
        out.contains("operator  resolved as executed (201), unknown to completed, by ann: the bank has it"),
        "{out}"
    );
    let late = ["keys", "resolve", &id, "--not-executed", "--reason", "me too", "--who", "bob", "--yes"];
    let (code, _, stderr) = run(&setup, &late);
    assert_eq!(code, 1);
    assert!(
        stderr.contains("the record is completed (201)") && stderr.contains("by ann: the bank has it"),
        "{stderr}"
    );
}
on_every_store!(an_operator_resolves_a_record_by_an_id_prefix and mysql);

#[tokio::test]
async fn not_executed_lets_the_retry_run_and_forget_makes_the_key_new() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).config("[store]\ncache_bytes = 1\n");
    let gateway = setup.start();
    lost(&gateway, "k").await;
    let id = only_id(&setup, &["--state", "unknown"]);
    let release = ["keys", "resolve", &id, "--not-executed", "--reason", "never arrived", "--yes", "--json"];
    let (code, out, stderr) = run(&setup, &[&release[..], &["--who", "ann"]].concat());
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON")["state"], "retryable");
    let before = upstream.executions("k");
    assert!(!is_replay(&gateway.call(&pay("k", "status=201;body=one")).await));
    assert!(is_replay(&gateway.call(&pay("k", "status=201;body=two")).await));
    assert_eq!(upstream.executions("k"), before + 1);

    let forget = ["keys", "forget", &id, "--reason", "a test", "--who", "ann"];
    let (code, _, stderr) = run(&setup, &forget);
    assert!(code == 1 && stderr.contains("would be forgotten"), "{stderr}");
    let (code, out, stderr) = run(&setup, &[&forget[..], &["--yes"]].concat());
    assert_eq!((code, out.as_str()), (0, format!("{id}: forgotten, now absent\n").as_str()), "{stderr}");
    assert!(stderr.contains("cache_ttl"), "when it is final: {stderr}");
    // The gateway's cache holds almost nothing, so it asks the store.
    let again = gateway.call(&pay("k", "status=201;body=three")).await;
    assert_eq!((again.text().as_str(), is_replay(&again)), ("three", false));
}

async fn an_acknowledged_dead_letter_answers_as_before(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on).config(FAILS);
    let gateway = setup.start();
    let mut holder = gateway.client().await;
    holder.send(&pay("k", "gate;status=201")).await;
    upstream.until(|tally| tally.held == 1).await;
    let letter = until_async("its lease lapses", async || {
        let (_, out, _) = run(&setup, &["keys", "list", "--dead-letters", "--json"]);
        let mut all: Vec<Value> = serde_json::from_str(&out).expect("JSON");
        all.pop()
    })
    .await;
    assert_eq!(letter["state"], "completed", "{letter}");
    let id = letter["id"].as_str().expect("an id")[..8].to_owned();
    let before = gateway.call(&pay("k", "gate;status=201")).await;
    assert!(is_replay(&before), "{before:?}");

    let words = ["keys", "resolve", &id, "--seen", "--reason", "the bank has none of it", "--who", "ann"];
    let (code, out, stderr) = run(&setup, &words);
    assert!(code == 1 && out.contains("completed") && out.contains("dead letter"), "{out}{stderr}");
    assert!(stderr.contains("would be a dead letter no longer, by ann: the bank has none of it"), "{stderr}");
    only_id(&setup, &["--dead-letters"]);
    let (code, out, stderr) = run(&setup, &[&words[..], &["--yes"]].concat());
    assert_eq!(
        (code, out.as_str()),
        (0, format!("{id}: a dead letter no longer, now completed\n").as_str()),
        "{stderr}"
    );
    let (code, out, _) = run(&setup, &["keys", "list", "--dead-letters", "--json"]);
    assert_eq!((code, out.trim()), (0, "[]"));
    let (_, out, _) = run(&setup, &["keys", "list", "--json"]);
    let now: Value = serde_json::from_str(&out).expect("JSON");
    assert!(now[0]["expires_at"].as_str() >= letter["expires_at"].as_str(), "no sooner: {out}");
    let (_, out, _) = run(&setup, &["keys", "show", &id]);
    let line = "seen to, a dead letter no longer, completed as before, by ann: the bank has none of it";
    assert!(out.contains(&format!("operator  {line}")), "{out}");
    let (code, _, stderr) = run(&setup, &[&words[..], &["--yes"]].concat());
    assert!(code == 1 && stderr.contains(line), "twice: {stderr}");
    let after = gateway.call(&pay("k", "gate;status=201")).await;
    assert_eq!((after.status, after.text(), is_replay(&after)), (before.status, before.text(), true));
    assert_eq!(upstream.deliveries_begun(), 1);
    upstream.gate().release(1);
}
on_every_store!(an_acknowledged_dead_letter_answers_as_before and mysql);

#[tokio::test]
async fn an_unknown_record_cannot_be_acknowledged() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).config(HASTY);
    let gateway = setup.start();
    lost(&gateway, "k").await;
    until_dead_letter(&setup).await;
    let id = only_id(&setup, &["--dead-letters"]);
    let words = ["keys", "resolve", &id, "--seen", "--reason", "r", "--who", "ann"];
    let (code, _, stderr) = run(&setup, &[&words[..], &["--yes"]].concat());
    assert!(code == 1 && stderr.contains("the record is unknown"), "{stderr}");
    only_id(&setup, &["--dead-letters", "--state", "unknown"]);
    for with in [&["--not-executed"][..], &["--status", "201"]] {
        let (code, _, stderr) = run(&setup, &[&words[..], with].concat());
        assert!(code == 2 && stderr.contains("cannot be used with"), "{stderr}");
    }
}

#[tokio::test]
async fn effects_are_listed_retried_and_discarded() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url());
    let gateway = setup.start();
    lost(&gateway, "k").await;
    let (_, out, _) = run(&setup, &["keys", "list", "--json"]);
    let record =
        serde_json::from_str::<Value>(&out).expect("JSON")[0]["id"].as_str().expect("an id").to_owned();
    let (first, second) = (dead_effect(&setup, &record, "charge"), dead_effect(&setup, &record, "mail"));
    let (first, second) = (first.to_string(), second.to_string());
    let (code, out, stderr) = run(&setup, &["effects", "list", "--dead-letters", "--record", &record[..8]]);
    assert!(
        code == 0 && out.contains("charge") && out.contains("mail") && out.contains("dead"),
        "{out}{stderr}"
    );
    let because = ["--reason", "their outage is over", "--who", "ann"];
    let (code, _, stderr) = run(&setup, &[&["effects", "retry", &first][..], &because].concat());
    assert!(code == 1 && stderr.contains("would be retried"), "{stderr}");
    let (code, out, _) = run(&setup, &[&["effects", "retry", &first, "--yes"][..], &because].concat());
    assert_eq!((code, out.as_str()), (0, format!("{first}: retried, now queued\n").as_str()));
    let (code, out, _) = run(&setup, &[&["effects", "discard", &second, "--yes"][..], &because].concat());
    assert_eq!((code, out.as_str()), (0, format!("{second}: discarded, now discarded\n").as_str()));
    let (code, _, stderr) = run(&setup, &[&["effects", "retry", &second, "--yes"][..], &because].concat());
    assert!(code == 1 && stderr.contains("the effect is discarded"), "{stderr}");
    let (_, out, _) = run(&setup, &["keys", "show", &record]);
    assert!(out.contains("effect `charge` retried, dead to queued, by ann: their outage is over"), "{out}");
    let (code, _, stderr) = run(&setup, &["effects", "list", "--state", "ded"]);
    assert!(code == 2 && stderr.contains("did you mean `dead`?"), "{stderr}");
}

#[tokio::test]
async fn an_invalid_act_is_refused_with_its_reason() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url());
    let gateway = setup.start();
    lost(&gateway, "k").await;
    let id = only_id(&setup, &[]);
    let cases: [(&[&str], i32, &str); 6] = [
        (&["keys", "resolve", &id, "--not-executed"], 2, "--reason"),
        (&["keys", "resolve", &id, "--reason", "r"], 2, "--not-executed"),
        (&["keys", "resolve", &id, "--not-executed", "--reason", " "], 2, "a reason has 1 to 500"),
        (
            &["keys", "resolve", &id, "--status", "204", "--body", "x", "--reason", "r"],
            2,
            "a response with status 204 has no body",
        ),
        (&["keys", "resolve", "ffffffffffff", "--not-executed", "--reason", "r"], 1, "no record begins with"),
        (&["keys", "forget", &id, "--reason", "r", "--yes"], 1, "the record is unknown"),
    ];
    for (words, expected, message) in cases {
        let words = if expected == 2 && message.starts_with("--") {
            words.to_vec()
        } else {
            [words, &["--who", "a"]].concat()
        };
        let (code, _, stderr) = run(&setup, &words);
        assert!(code == expected && stderr.contains(message), "{words:?}: {code} {stderr}");
    }
}
