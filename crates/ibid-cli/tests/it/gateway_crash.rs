//! Gateways are killed with SIGKILL under load: no key is delivered twice, no stored response changes, every key
//! settles.
//!
//! Sixteen clients send keys of every class of upstream response, and retry each until it is settled. Meanwhile
//! gateways are killed and started again on the same store. The test then compares the deliveries to the upstream with
//! the responses that clients got. `CRASH_SEED=…` repeats a run, as far as a race can be repeated.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request as HttpRequest, Response as HttpResponse};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use ibid_testkit::client::{Client, TestRequest, TestResponse};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};

use crate::harness::{Gateway, On, Setup, is_replay, on_every_store, problem, until_async};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_gateway_killed_at_any_moment_never_delivers_twice() {
    crash(On::Sqlite, 1).await;
}

on_every_store!(two_gateways_killed_at_any_moment_never_deliver_twice and mysql and redis);
async fn two_gateways_killed_at_any_moment_never_deliver_twice(on: On) {
    crash(on, 2).await;
}

/// A lapsed lease waits for the skew besides, and there are no counts: a list says when the sweeper is done.
#[cfg(feature = "dynamodb")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn gateways_killed_on_dynamodb_never_deliver_twice() {
    crash(On::Dynamodb, 2).await;
}

async fn crash(on: On, gateways: usize) {
    let seed = draw_seed();
    println!("CRASH_SEED={seed}");
    let started = Instant::now();
    let upstream = Upstream::start(seed).await;
    let config = format!(
        "[defaults]\nlease = \"{}ms\"\n[upkeep]\nsweep_every = \"{every}ms\"\nreap_every = \"{every}ms\"\n",
        LEASE.as_millis(),
        every = SWEEP_EVERY.as_millis()
    );
    let setup = Setup::before(&format!("http://{}", upstream.addr)).config(&config).on(on);
    let mut running: Vec<Gateway> = (0..gateways).map(|_| block_in_place(|| setup.start())).collect();
    let load = Arc::new(Load::new(seed, &running));
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        clients.spawn(Arc::clone(&load).client(n as u64));
    }

    let mut kills = kill_under_load(on, &setup, &upstream, &load, &mut running).await;

    // After the last kill, no client retries the keys that it left open, so only the sweeper can settle them.
    load.abandoned.store(true, Ordering::SeqCst);
    running.iter_mut().for_each(Gateway::kill);
    kills += gateways;
    while let Some(ended) = clients.join_next().await {
        ended.expect("no client panics");
    }
    let back = block_in_place(|| setup.start());
    let swept = wait_for_sweeper(on, &setup, &back).await;
    // A record that was begun just before the kill has its whole lease ahead.
    let allowed = LEASE + SWEEP_EVERY + SLACK + more_time(on);
    assert!(swept < allowed, "lapsed ones took {swept:?}; seed {seed}");
    let lapsed = back.metric("ibid_zombie_keys_total", "").await;

    // Every key settles, and every client gets the response it got before, also for keys that settled long ago.
    *load.doors.lock().unwrap() = vec![back.addr()];
    load.abandoned.store(false, Ordering::SeqCst);
    load.stopped.store(true, Ordering::SeqCst);
    load.ask_for_all_again().await;
    let outcomes = load.keys.lock().unwrap().clone();
    let figures = judge(&upstream, &outcomes);
    let broken = load.broken.lock().unwrap().clone();
    assert!(broken.is_empty() && figures.wrong.is_empty(), "seed {seed}: {broken:#?} {:#?}", figures.wrong);
    assert!(figures.unknown_by_crash > 0, "kills hit running requests, or this test proves nothing");
    drop(back);
    if on == On::Sqlite {
        assert_file_is_whole(&setup);
    }
    println!(
        "{kills} kills, {} keys, {} deliveries, {} stored, {} unknown ({} by a crash, {lapsed} swept after the last), \
         swept in {swept:?}, {:?} in all",
        outcomes.len(),
        figures.deliveries,
        figures.stored,
        outcomes.len() - figures.stored,
        figures.unknown_by_crash,
        started.elapsed(),
    );
}

/// Returns the seed that `CRASH_SEED` sets, or else the current time.
fn draw_seed() -> u64 {
    let seed = std::env::var("CRASH_SEED").ok().and_then(|text| text.parse().ok());
    seed.unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.expect("after 1970").as_nanos() as u64
    })
}

/// Kills gateways under load, at moments that the seed decides, and starts them again. Returns the number of kills.
async fn kill_under_load(
    on: On,
    setup: &Setup,
    upstream: &Upstream,
    load: &Load,
    running: &mut [Gateway],
) -> usize {
    let seed = load.seed;
    let mut dice = Dice(seed);
    let mut kills = 0;
    while kills < kills_wanted(on) {
        // The moment of a kill is a number of deliveries, upstream responses or client responses since the last kill.
        // The other clients can then be at any point of their work.
        let counter = [&upstream.ledger.delivered, &upstream.ledger.answered, &load.heard][dice.below(3)];
        let target = *counter.borrow() + 1 + dice.below(60);
        let mut counting = counter.subscribe();
        let reached = tokio::time::timeout(PATIENCE, counting.wait_for(|count| *count >= target)).await;
        assert!(reached.is_ok(), "the load came to a halt; seed {seed}; {:?}", load.open_keys());
        drop(reached);
        // In one of three rounds, kill the store's server as well, where a test may.
        if dice.below(3) == 0 {
            block_in_place(|| setup.restart_redis());
        }
        let victim = dice.below(running.len());
        running[victim].kill();
        kills += 1;
        // In one of four rounds, kill both at once.
        if running.len() == 2 && dice.below(4) == 0 {
            running[1 - victim].kill();
            kills += 1;
            running[1 - victim] = block_in_place(|| setup.start());
        }
        running[victim] = block_in_place(|| setup.start());
        *load.doors.lock().unwrap() = running.iter().map(Gateway::addr).collect();
    }
    kills
}

/// Waits until no attempt is taken for running any more, and returns how long that took.
async fn wait_for_sweeper(on: On, setup: &Setup, gateway: &Gateway) -> Duration {
    let since = Instant::now();
    if !more_time(on).is_zero() {
        let store = setup.store();
        let words = ["keys", "list", "--store", store.as_str(), "--state", "in_progress", "--json"];
        until_async("no attempt is listed as running any more", async || {
            let listed = block_in_place(|| setup.ibid(&words));
            assert!(listed.status.success(), "{listed:?}");
            let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
            (!listed.contains("/payments")).then_some(())
        })
        .await;
        return since.elapsed();
    }
    until_async("no attempt is taken for running any more", async || {
        let page = gateway.page("/metrics").await.text();
        page.lines().any(|line| line == "ibid_records{state=\"in_progress\"} 0").then_some(())
    })
    .await;
    since.elapsed()
}

fn assert_file_is_whole(setup: &Setup) {
    let file = rusqlite::Connection::open(setup.database()).expect("the file is there");
    let whole: String =
        file.query_row("pragma integrity_check", [], |row| row.get(0)).expect("it can be read");
    assert_eq!(whole, "ok");
}

/// Outcome of a key, as its client knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyOutcome {
    /// The outcome is not known yet.
    Open,
    /// This response is stored and must not change.
    Stored { status: u16, body: String },
    /// The outcome is unknown, and no gateway tries again.
    Unknown,
}

/// The clients, and the outcomes that they know.
struct Load {
    seed: u64,
    /// Addresses of the running gateways.
    doors: Mutex<Vec<SocketAddr>>,
    next: AtomicUsize,
    /// Set to start no new keys.
    stopped: AtomicBool,
    /// Set to leave at once, even with open keys.
    abandoned: AtomicBool,
    /// Number of responses that clients got.
    heard: watch::Sender<usize>,
    keys: Mutex<BTreeMap<String, KeyOutcome>>,
    /// Violations that clients saw.
    broken: Mutex<Vec<String>>,
}

impl Load {
    fn new(seed: u64, running: &[Gateway]) -> Load {
        Load {
            seed,
            doors: Mutex::new(running.iter().map(Gateway::addr).collect()),
            next: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            heard: watch::Sender::new(0),
            keys: Mutex::default(),
            broken: Mutex::default(),
        }
    }

    /// Runs one client: it sends fresh keys, retries each until it is settled, and sometimes repeats an old one.
    async fn client(self: Arc<Self>, number: u64) {
        let mut dice = Dice(self.seed ^ (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut connection = None;
        let mut mine: Vec<String> = Vec::new();
        while !self.stopped.load(Ordering::SeqCst) && !self.abandoned.load(Ordering::SeqCst) {
            let key = if dice.below(4) == 0 && !mine.is_empty() {
                mine[dice.below(mine.len())].clone()
            } else {
                let n = self.next.fetch_add(1, Ordering::SeqCst);
                let key = format!("{}-{n}", CLASSES[dice.below(CLASSES.len())].0);
                self.keys.lock().unwrap().insert(key.clone(), KeyOutcome::Open);
                mine.push(key.clone());
                key
            };
            self.settle(&key, &mut connection, &mut dice).await;
        }
    }

    /// Sends the request until it is settled, or until the load is abandoned.
    async fn settle(&self, key: &str, connection: &mut Option<Client>, dice: &mut Dice) {
        let deadline = Instant::now() + PATIENCE;
        while !self.abandoned.load(Ordering::SeqCst) {
            if Instant::now() > deadline {
                return self.breach(format!("`{key}` was not settled in {PATIENCE:?}"));
            }
            let mut request = TestRequest::post("/payments").key(key).body(format!("pay for {key}"));
            if dice.below(2) == 0 {
                request = request.header("Prefer", "wait=0");
            }
            let Some(answer) = self.ask(&request, connection, dice).await else {
                tokio::time::sleep(RETRY_AFTER).await;
                continue;
            };
            self.heard.send_modify(|count| *count += 1);
            if let Some(outcome) = self.outcome_of(key, &answer) {
                return self.record_outcome(key, outcome, &answer);
            }
            if answer.status == 409 || answer.status == 503 {
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }

    /// Sends one request on the kept connection or on a new one. Returns `None` if the connection broke.
    async fn ask(
        &self,
        request: &TestRequest,
        connection: &mut Option<Client>,
        dice: &mut Dice,
    ) -> Option<TestResponse> {
        if connection.is_none() {
            let door = {
                let doors = self.doors.lock().unwrap();
                doors[dice.below(doors.len())]
            };
            *connection = Client::try_connect(door).await;
        }
        let answer = connection.as_mut()?.try_call(request).await.filter(|answer| !answer.cut);
        // Reconnect now and then, so that both gateways see every key.
        if answer.is_none() || dice.below(16) == 0 {
            *connection = None;
        }
        answer
    }

    /// Returns the outcome that a response proves, or `None` if the client has to retry.
    fn outcome_of(&self, key: &str, answer: &TestResponse) -> Option<KeyOutcome> {
        match (answer.status, problem(answer).as_str()) {
            (409, "outcome-unknown") => Some(KeyOutcome::Unknown),
            (502 | 504, "outcome-unknown") | (409, "request-in-progress") => None,
            (503, "store-unavailable" | "upstream-unavailable") => None,
            (200 | 201 | 404 | 422, "") if answer.header("idempotency-stored").is_none() => {
                Some(KeyOutcome::Stored { status: answer.status, body: answer.text() })
            }
            // A response of the upstream that is not stored, or one whose record could not be written in time.
            (200 | 201 | 404 | 422 | 409 | 425 | 429 | 500 | 503, "") => None,
            (status, code) => {
                self.breach(format!("`{key}` was answered {status} `{code}`"));
                Some(KeyOutcome::Unknown)
            }
        }
    }

    /// Records an outcome, and compares it with the one that the client knew before.
    fn record_outcome(&self, key: &str, outcome: KeyOutcome, answer: &TestResponse) {
        let before = self.keys.lock().unwrap().insert(key.to_owned(), outcome.clone());
        match (before, &outcome) {
            (None | Some(KeyOutcome::Open), _) => {}
            // The client already got this response, so this one must be a replay.
            (Some(before), KeyOutcome::Stored { .. }) if before == outcome && is_replay(answer) => {}
            (Some(KeyOutcome::Unknown), KeyOutcome::Unknown) => {}
            // The attempt outlived its lease and returned with the response: it settles its own record.
            (Some(KeyOutcome::Unknown), KeyOutcome::Stored { .. }) if is_replay(answer) => {}
            (before, outcome) => {
                self.breach(format!("`{key}` was {before:?} and is now {outcome:?}: {answer:?}"))
            }
        }
    }

    /// Sends every key once more: open keys settle, and the others must get the same response again.
    async fn ask_for_all_again(self: &Arc<Self>) {
        let keys: Vec<String> = self.keys.lock().unwrap().keys().cloned().collect();
        let mut asking = JoinSet::new();
        for (n, share) in keys.chunks(keys.len().div_ceil(CLIENTS)).enumerate() {
            let (load, share) = (Arc::clone(self), share.to_vec());
            asking.spawn(async move {
                let (mut dice, mut connection) = (Dice(n as u64), None);
                for key in &share {
                    load.settle(key, &mut connection, &mut dice).await;
                }
            });
        }
        while let Some(ended) = asking.join_next().await {
            ended.expect("no client panics");
        }
    }

    fn open_keys(&self) -> Vec<String> {
        let keys = self.keys.lock().unwrap();
        keys.iter().filter(|(_, outcome)| **outcome == KeyOutcome::Open).map(|(key, _)| key.clone()).collect()
    }

    fn breach(&self, what: String) {
        self.broken.lock().unwrap().push(what);
    }
}

/// Result of the comparison in [`judge`].
#[derive(Default)]
struct Figures {
    deliveries: usize,
    stored: usize,
    unknown_by_crash: usize,
    wrong: Vec<String>,
}

/// Compares the deliveries to the upstream with the outcomes that the clients know.
fn judge(upstream: &Upstream, outcomes: &BTreeMap<String, KeyOutcome>) -> Figures {
    let mut figures = Figures::default();
    let deliveries = upstream.ledger.deliveries.lock().unwrap();
    for (key, outcome) in outcomes {
        let given = deliveries.get(key).map(Vec::as_slice).unwrap_or_default();
        figures.deliveries += given.len();
        let mut wrong =
            |why: &str| figures.wrong.push(format!("{why}: `{key}` {outcome:?}, delivered {given:?}"));
        // Every delivery before the last must have proven that nothing was executed.
        let (last, earlier) =
            given.split_last().map_or((None, &[][..]), |(last, earlier)| (Some(last), earlier));
        if earlier.iter().any(|status| !FREE.contains(status)) {
            wrong("delivered again");
        }
        match outcome {
            KeyOutcome::Open => wrong("never settled"),
            KeyOutcome::Stored { status, body } => {
                figures.stored += 1;
                if last != Some(status) || *body != answer_body(key, given.len()) {
                    wrong("not the answer of the one delivery");
                }
            }
            KeyOutcome::Unknown if last.is_none_or(|status| ![500, 503, CUT].contains(status)) => {
                figures.unknown_by_crash += 1;
            }
            KeyOutcome::Unknown => {}
        }
    }
    figures
}

/// An upstream whose response depends on the class of the key, and which records every delivery.
struct Upstream {
    addr: SocketAddr,
    ledger: Arc<Ledger>,
    serving: tokio::task::JoinHandle<()>,
}

struct Ledger {
    seed: u64,
    /// Statuses that it responded with to each delivery of a key.
    deliveries: Mutex<HashMap<String, Vec<u16>>>,
    delivered: watch::Sender<usize>,
    answered: watch::Sender<usize>,
}

impl Upstream {
    async fn start(seed: u64) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("its address");
        let ledger = Arc::new(Ledger {
            seed,
            deliveries: Mutex::default(),
            delivered: watch::Sender::new(0),
            answered: watch::Sender::new(0),
        });
        let shared = Arc::clone(&ledger);
        let serving = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let ledger = Arc::clone(&shared);
                tokio::spawn(async move {
                    let serve = hyper::service::service_fn(|request| ledger.serve(request));
                    let mut http = hyper::server::conn::http1::Builder::new();
                    // An error of the service is a cut connection, which is intended.
                    let _ = http.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), serve).await;
                });
            }
        });
        Upstream { addr, ledger, serving }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Ledger {
    async fn serve(&self, request: HttpRequest<Incoming>) -> Result<HttpResponse<Full<Bytes>>, &'static str> {
        let key = request.headers()["idempotency-key"]
            .to_str()
            .expect("a key of ours")
            .trim_matches('"')
            .to_owned();
        // Count the request once it was read to its end: before that, nothing can have been executed.
        request.into_body().collect().await.map_err(|_| "a request that broke off")?;
        let class = key.split('-').next().unwrap_or_default();
        let answers = CLASSES.iter().find(|(name, _)| *name == class).expect("a class of ours").1;
        let (status, number) = {
            let mut deliveries = self.deliveries.lock().unwrap();
            let given = deliveries.entry(key.clone()).or_default();
            let status = answers[given.len().min(answers.len() - 1)];
            given.push(status);
            (status, given.len())
        };
        self.delivered.send_modify(|count| *count += 1);
        // The work takes a random time.
        let mut dice =
            Dice(key.bytes().fold(self.seed, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())));
        if dice.below(2) == 0 {
            tokio::time::sleep(Duration::from_millis(dice.below(20) as u64)).await;
        }
        self.answered.send_modify(|count| *count += 1);
        if status == CUT {
            return Err("cut");
        }
        let mut answer = HttpResponse::builder().status(status).header("content-type", "text/plain");
        if status == 409 {
            answer = answer.header("retry-after", "1");
        }
        Ok(answer.body(Full::from(answer_body(&key, number))).expect("an answer of ours"))
    }
}

/// Returns a different body for each delivery, so that a response shows which delivery it came from.
fn answer_body(key: &str, delivery: usize) -> String {
    format!("{key} by delivery {delivery}")
}

/// A random number generator (splitmix64) with a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// Statuses of the deliveries of a key, by its class; the last applies to all that follow.
const CLASSES: [(&str, &[u16]); 11] = [
    ("created", &[201]),
    ("ok", &[200]),
    ("missing", &[404]),
    ("invalid", &[422]),
    ("error", &[500]),
    ("down", &[503]),
    ("early", &[425, 201]),
    ("often", &[429, 429, 200]),
    ("locked", &[409, 201]),
    ("mixed", &[425, 429, 409, 422]),
    ("cut", &[CUT]),
];

/// Stands for a connection that is closed after the request was read.
const CUT: u16 = 0;

/// Statuses after which a key may be delivered again.
const FREE: [u16; 3] = [409, 425, 429];

const CLIENTS: usize = 16;

/// Returns the number of kills in each test. `scripts/soak` asks for many.
fn kills_wanted(on: On) -> usize {
    let kills = if std::env::var_os("IBID_SOAK").is_some() { 200 } else { 20 };
    // Where a killed key takes the skew besides, each kill costs the clients seconds.
    if more_time(on).is_zero() { kills } else { kills / 4 }
}

/// Returns how much longer a lapsed lease waits on this kind of store: the skew, and a list that looks at the table.
fn more_time(on: On) -> Duration {
    match on {
        #[cfg(feature = "dynamodb")]
        On::Dynamodb => Duration::from_secs(5 + 3),
        _ => Duration::ZERO,
    }
}

const LEASE: Duration = Duration::from_secs(1);
const SWEEP_EVERY: Duration = Duration::from_millis(200);

/// Time for a restart and a scrape on a two-core machine that is busy with other tests.
const SLACK: Duration = Duration::from_millis(1500);

/// Pause of a client that was refused or cut off.
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// Longest wait; only a real hang reaches it.
const PATIENCE: Duration = Duration::from_secs(30);
