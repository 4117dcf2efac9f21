//! The counts and the log of a fixture, and the gate that its requests wait at.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use super::behaviour::{Behaviour, Body};
use crate::client::{Fields, lines_named};

/// The counts that a fixture keeps.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of connections accepted.
    pub connections: usize,
    /// Connections that have ended, whichever side closed them.
    pub closed: usize,
    /// Requests whose head was read.
    pub begun: usize,
    /// Requests read to their end: these count as executed.
    pub total: usize,
    /// Requests that wait at the gate at this moment.
    pub held: usize,
    /// Requests refused without being executed (HTTP/2 only).
    pub refused: usize,
    /// Executions per key. Not bounded: load runs are checked with it.
    pub per_key: BTreeMap<String, usize>,
}

impl Tally {
    /// Returns the keys executed more than once: what ibid exists to prevent.
    pub fn repeated_keys(&self) -> Vec<&str> {
        self.per_key.iter().filter(|(_, n)| **n > 1).map(|(key, _)| key.as_str()).collect()
    }
}

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct SeenRequest {
    /// The method, as it was sent.
    pub method: String,
    /// Path and query as sent.
    pub target: String,
    /// The field lines, in order.
    pub headers: Fields,
    /// The body; of a huge one only the start.
    pub body: Vec<u8>,
    /// The trailer lines of a chunked request.
    pub trailers: Fields,
    /// Number of the connection it arrived on; the first is 1.
    pub connection: usize,
}

impl SeenRequest {
    /// Returns the first field of that name, as text.
    pub fn header(&self, name: &str) -> Option<String> {
        self.header_lines(name).into_iter().next()
    }

    /// Returns every field of that name, in order, as text.
    pub fn header_lines(&self, name: &str) -> Vec<String> {
        lines_named(&self.headers, name).map(|v| String::from_utf8_lossy(v).into_owned()).collect()
    }

    /// Returns the key it carried, quoted or bare; a request without a body carries it in another field.
    pub fn key(&self) -> Option<String> {
        self.header("idempotency-key")
            .or_else(|| self.header("ibid-key"))
            .map(|value| value.trim_matches('"').to_owned())
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (path, query) = self.target.split_once('?').unwrap_or((&self.target, ""));
        let headers: Vec<_> = self.headers.iter().map(|(n, v)| [text(n), text(v)]).collect();
        let json = serde_json::json!({
            "method": self.method, "path": path, "query": query, "headers": headers, "body": text(&self.body),
        });
        json.to_string().into_bytes()
    }
}

/// Blocks requests until the test releases them, so that no test has to sleep.
#[derive(Debug)]
pub struct RunGate(Semaphore);

impl RunGate {
    /// Lets `n` requests pass, now or when they arrive.
    pub fn release(&self, n: usize) {
        self.0.add_permits(n);
    }

    /// Lets every request pass from now on.
    pub fn open(&self) {
        self.0.close();
    }

    async fn pass(&self) {
        // An error means that the gate was opened permanently.
        if let Ok(permit) = self.0.acquire().await {
            permit.forget();
        }
    }
}

/// State shared by the connections of one fixture, which its owner can query.
#[derive(Debug)]
pub(crate) struct Ledger {
    tally: watch::Sender<Tally>,
    log: Mutex<VecDeque<SeenRequest>>,
    behaviour: Mutex<Behaviour>,
    pub(crate) gate: RunGate,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            tally: watch::Sender::new(Tally::default()),
            log: Mutex::default(),
            behaviour: Mutex::new(Behaviour::default()),
            gate: RunGate(Semaphore::new(0)),
        }
    }
}

impl Ledger {
    pub(crate) fn count(&self, change: impl FnOnce(&mut Tally)) {
        self.tally.send_modify(change);
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally.borrow().clone()
    }

    /// Returns the number of connections accepted, without a copy of the counts per key.
    pub(super) fn connections(&self) -> usize {
        self.tally.borrow().connections
    }

    pub(crate) async fn until(&self, enough: impl FnMut(&Tally) -> bool) -> Tally {
        let mut watching = self.tally.subscribe();
        let reached = tokio::time::timeout(PATIENCE, watching.wait_for(enough)).await;
        match reached {
            Ok(tally) => tally.expect("the sender is in self").clone(),
            Err(_) => panic!("the upstream stayed at {:?}", self.tally()),
        }
    }

    /// Logs a request that was read to its end.
    pub(crate) fn log_executed(&self, mut request: SeenRequest) {
        let key = request.key();
        request.body.truncate(BODY_KEPT_MAX);
        {
            let mut log = self.log.lock().expect("no one panics with the log");
            if log.len() == LOG_MAX {
                log.pop_front();
            }
            log.push_back(request);
        }
        // After the log, so that a test that waits for the count finds the request in it.
        self.count(|tally| {
            tally.total += 1;
            if let Some(key) = key {
                *tally.per_key.entry(key).or_default() += 1;
            }
        });
    }

    pub(crate) fn requests(&self) -> Vec<SeenRequest> {
        self.log.lock().expect("no one panics with the log").iter().cloned().collect()
    }

    /// Returns how often this target was executed, as far back as the log goes.
    pub(super) fn executions_of(&self, target: &str) -> usize {
        self.log
            .lock()
            .expect("no one panics with the log")
            .iter()
            .filter(|request| request.target == target)
            .count()
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock().expect("no one panics with it") = behaviour;
    }

    pub(crate) fn behaviour(&self) -> Behaviour {
        self.behaviour.lock().expect("no one panics with it").clone()
    }

    /// Returns the behaviour that this request asks for, else the default. A directive with a typo must not pass as a
    /// default response, so it becomes a response that no test expects.
    pub(crate) fn behaviour_for(&self, headers: &Fields) -> Behaviour {
        let Some(asked) = lines_named(headers, "x-fixture").next() else { return self.behaviour() };
        Behaviour::parse(&String::from_utf8_lossy(asked)).unwrap_or_else(|problem| Behaviour {
            status: 599,
            body: Body::Given(problem.into_bytes()),
            ..Behaviour::default()
        })
    }

    pub(crate) async fn hold(&self, behaviour: &Behaviour) {
        if behaviour.gated {
            self.wait_at_gate().await;
        }
        if !behaviour.delay.is_zero() {
            tokio::time::sleep(behaviour.delay).await;
        }
    }

    pub(super) async fn wait_at_gate(&self) {
        self.count(|tally| tally.held += 1);
        self.gate.pass().await;
        self.count(|tally| tally.held -= 1);
    }
}

/// Number of requests in the log. No test looks further back, and a load run must not fill memory.
const LOG_MAX: usize = 1024;

/// Bytes of each body in the log: all that tests compare.
const BODY_KEPT_MAX: usize = 1 << 20;

/// Time that a test waits for a count: only a real hang reaches it.
const PATIENCE: Duration = Duration::from_secs(30);
