//! `ibid demo`: a shell runs every line that it prints, and the result is what the comment above the line says.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ibid_testkit::postgres::Postgres;
use serde_json::Value;

#[test]
fn every_line_of_the_demo_shows_what_it_says() {
    let demo = Demo::start(&[]);
    let lines: Vec<&str> = demo.lines().collect();
    assert_eq!(lines.len(), 10 + 7, "{}", demo.script);
    assert_eq!(lines.iter().filter(|line| line.contains("curl ")).count(), 9 + 7);
    gateway(lines[..10].try_into().expect("ten lines"), "");
    application(lines[10..].try_into().expect("seven lines"));
    demo.stop();
}

fn gateway([first, again, other, both, lost, retry, list, status, metrics, keys]: [&str; 10], suffix: &str) {
    let paid = answers(first);
    assert_eq!((paid[0].status, paid[0].replayed), (201, false));
    assert_eq!(paid[0].body["id"], "pay_1");
    assert_eq!(first, again, "the retry is the same call");
    let replay = answers(again);
    assert_eq!((replay[0].status, replay[0].replayed), (201, true));
    assert_eq!(replay[0].text, paid[0].text, "the same bytes");

    let mismatch = answers(other);
    assert_eq!((mismatch[0].status, mismatch[0].replayed), (422, false));
    assert!(mismatch[0].text.contains("key-reused"), "{}", mismatch[0].text);

    let pair = answers(both);
    assert_eq!(pair.iter().map(|answer| answer.status).collect::<Vec<_>>(), [201, 201]);
    assert_eq!(pair[0].text, pair[1].text, "one execution");
    assert_eq!(pair.iter().filter(|answer| answer.replayed).count(), 1);

    let uncertain = answers(lost);
    assert_eq!(uncertain[0].status, 502);
    assert!(uncertain[0].text.contains("outcome-unknown"), "{}", uncertain[0].text);
    let refused = answers(retry);
    assert_eq!((refused[0].status, refused[0].replayed), (409, false));
    assert!(refused[0].text.contains("outcome-unknown"), "{}", refused[0].text);

    let paid: Value = serde_json::from_str(&shell(list)).expect("the list is JSON");
    assert_eq!(paid["count"], 3);
    let under: Vec<_> =
        paid["payments"].as_array().expect("a list").iter().map(|one| &one["idempotencyKey"]).collect();
    assert_eq!(under, [1, 2, 3].map(|number| Value::from(format!("\"order-{number}{suffix}\""))).each_ref());

    let status: Value = serde_json::from_str(&shell(status)).expect("the status page is JSON");
    assert_eq!((&status["state"], &status["attempts"]), (&"unknown".into(), &1.into()));
    let metrics = shell(metrics);
    for counted in
        ["ibid_reserve_created_total", "ibid_reserve_replay_total", "ibid_reserve_key_misuse_total"]
    {
        assert!(metrics.contains(counted), "{counted} in {metrics}");
    }
    let keys = shell(keys);
    for key in ["order-1", "order-2", "order-3"] {
        assert!(keys.contains(key), "{key} in {keys}");
    }
}

fn application([first, until, again, other, ride, ride_again, charges]: [&str; 7]) {
    let pending = answers(first);
    assert_eq!((pending[0].status, pending[0].replayed), (201, false));
    assert_eq!(pending[0].body["status"], "pending");

    let paid: Value = serde_json::from_str(&shell(until)).expect("the list is JSON");
    let paid = paid["payments"].as_array().expect("a list");
    assert_eq!(paid.len(), 1);
    assert_eq!(paid[0]["paymentId"], pending[0].body["paymentId"]);
    assert_eq!(paid[0]["status"], "succeeded");

    assert_eq!(first, again, "the retry is the same call");
    let replay = answers(again);
    assert_eq!((replay[0].status, replay[0].replayed), (201, true));
    assert_eq!(replay[0].text, pending[0].text, "the same bytes");
    let mismatch = answers(other);
    assert_eq!((mismatch[0].status, mismatch[0].replayed), (422, false));
    assert!(mismatch[0].text.contains("key-reused"), "{}", mismatch[0].text);

    assert_eq!(answers(ride)[0].status, 503);
    assert_eq!(ride, ride_again, "the retry is the same call");
    let ridden = answers(ride_again);
    assert_eq!((ridden[0].status, ridden[0].replayed), (201, false));
    assert_eq!(ridden[0].body["status"], "succeeded");
    assert!(ridden[0].body["receiptId"].is_string(), "{}", ridden[0].text);

    let charges: Value = serde_json::from_str(&shell(charges)).expect("the list is JSON");
    assert_eq!((&charges["requests"], &charges["count"]), (&4.into(), &2.into()));
    let charges = charges["charges"].as_array().expect("a list");
    assert_eq!(charges[0]["chargeId"], paid[0]["chargeId"], "the one that its payment knows");
    let charged_for: Vec<_> = charges.iter().map(|charge| &charge["reference"]).collect();
    assert_eq!(charged_for, [&pending[0].body["paymentId"], &ridden[0].body["rideId"]]);
}

/// A second run on the same store shows the same, because its keys are new.
#[test]
fn the_demo_runs_on_a_store_that_stays() {
    let server = Postgres::shared();
    for _ in 0..2 {
        shows_the_gateway_on(&server.url());
    }
}

#[cfg(feature = "mysql")]
#[test]
fn the_demo_runs_on_mysql() {
    shows_the_gateway_on(&ibid_testkit::mariadb::MariaDb::shared().url());
}

#[cfg(feature = "redis")]
#[test]
fn the_demo_runs_on_redis() {
    shows_the_gateway_on(&ibid_testkit::redis::Redis::start().url());
}

/// DynamoDB's library asks for credentials, and DynamoDB Local accepts any.
#[cfg(feature = "dynamodb")]
#[test]
fn the_demo_runs_on_dynamodb() {
    let server = ibid_testkit::dynamodb::DynamoDb::shared();
    let (region, endpoint) = (server.region(), server.url());
    let url = format!("dynamodb://ibid?region={region}&endpoint={endpoint}&shards=4");
    let login = [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")];
    shows_the_gateway_with(&url, &login);
}

fn shows_the_gateway_on(url: &str) {
    shows_the_gateway_with(url, &[]);
}

/// Runs the gateway's part of the demo, and what it prints, with these variables.
fn shows_the_gateway_with(url: &str, variables: &[(&str, &str)]) {
    let demo = Demo::start_with(&["--store", url], variables);
    let has_user = url.contains('@');
    assert_eq!(demo.script.contains(url), !has_user, "such a URL may have a password: {}", demo.script);
    let suffix = demo.script.split("order-1").nth(1).and_then(|rest| rest.split('"').next());
    let suffix = suffix.expect("a key with a suffix").to_owned();
    assert!(suffix.starts_with('-'), "{suffix}");
    let lines: Vec<String> =
        demo.lines().take(10).map(|line| line.replace("\"$STORE\"", &format!("'{url}'"))).collect();
    let exports: String = variables.iter().map(|(name, value)| format!("export {name}={value}; ")).collect();
    let lines: Vec<String> = lines.iter().map(|line| format!("{exports}{line}")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    gateway(lines.try_into().expect("ten lines"), &suffix);
    demo.stop();
}

#[test]
fn a_demo_on_a_store_in_memory_is_refused() {
    let output = ibid(&["demo", "--store", "memory:"]).output().expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("`--store` names a store in memory"), "{stderr}");
}

#[test]
fn the_stores_go_when_the_demo_ends() {
    let demo = Demo::start(&[]);
    let (_, store) = demo.script.split_once("--store 'sqlite:").expect("the store is named");
    let folder =
        Path::new(store.split('\'').next().expect("a quoted path")).parent().expect("a folder").to_owned();
    for store in ["ibid.db", "payments.db"] {
        assert!(folder.join(store).is_file(), "{store} in {}", folder.display());
    }
    // Also while the second try of a charge is still due.
    let pays = demo.lines().nth(10).expect("the application's first line");
    assert_eq!(answers(pays)[0].status, 201);
    demo.stop();
    assert!(!folder.exists(), "{}", folder.display());
}

#[test]
fn a_port_that_was_asked_for_and_is_taken_is_an_error() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let taken = other.local_addr().expect("it is bound").to_string();
    for asked in LISTENS {
        let mut words = vec!["demo"];
        for flag in LISTENS {
            words.extend([flag, if flag == asked { &taken } else { "127.0.0.1:0" }]);
        }
        let output = ibid(&words).output().expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        assert!(stderr.contains(&format!("cannot listen on `{taken}`")), "{stderr}");
        assert!(stderr.contains("hint: ") && stderr.contains(asked), "{stderr}");
    }
}

/// A running demo, on ports that the system chose.
struct Demo {
    child: Child,
    script: String,
}

impl Demo {
    fn start(more: &[&str]) -> Demo {
        Demo::start_with(more, &[])
    }

    fn start_with(more: &[&str], variables: &[(&str, &str)]) -> Demo {
        let child = ibid(&["demo"])
            .args(more)
            .envs(variables.iter().copied())
            .args(LISTENS.iter().flat_map(|flag| [flag, "127.0.0.1:0"]))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let mut demo = Demo { child, script: String::new() };
        let out = BufReader::new(demo.child.stdout.take().expect("stdout is piped"));
        for line in out.lines().map(|line| line.expect("stdout is UTF-8")) {
            demo.script.push_str(&line);
            demo.script.push('\n');
            if line.starts_with("# Ctrl-C") {
                return demo;
            }
        }
        panic!("the demo ended after: {}", demo.script);
    }

    /// Returns the printed commands, without the comments.
    fn lines(&self) -> impl Iterator<Item = &str> {
        self.script.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
    }

    fn stop(mut self) {
        let asked = Command::new("kill").arg(self.child.id().to_string()).status().expect("kill runs");
        assert!(asked.success());
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // Only after a failed assertion is the process still running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One response, as `curl -i` shows it.
struct Answer {
    status: u16,
    replayed: bool,
    text: String,
    body: Value,
}

/// Runs a line and reads the responses that it prints, one after the other.
fn answers(line: &str) -> Vec<Answer> {
    let printed = shell(line).replace('\r', "");
    let starts: Vec<usize> = printed.match_indices("HTTP/1.1 ").map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([printed.len()]);
    starts.iter().zip(ends).map(|(start, end)| Answer::read(&printed[*start..end])).collect()
}

impl Answer {
    fn read(printed: &str) -> Answer {
        let (head, text) = printed.split_once("\n\n").expect("a blank line after the head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
        Answer {
            status,
            replayed: head.lines().any(|line| line.eq_ignore_ascii_case("idempotent-replayed: true")),
            text: text.trim().to_owned(),
            body: serde_json::from_str(text).expect("the body is JSON"),
        }
    }
}

/// Runs a pasted line in a shell and returns its output.
fn shell(line: &str) -> String {
    let output = Command::new("bash").args(["-c", line]).output().expect("bash runs");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("what is printed is UTF-8")
}

/// Returns a command for the binary, without the variables of the test's environment.
fn ibid(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ibid"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("IBID_")) {
        command.env_remove(name);
    }
    command.args(words);
    command
}

/// All flags that take an address.
const LISTENS: [&str; 4] = ["--listen", "--admin-listen", "--payments-listen", "--provider-listen"];
