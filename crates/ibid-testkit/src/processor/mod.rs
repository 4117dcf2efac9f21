//! A simulated card processor on a real socket. It deduplicates by key, and fails in the ways that processors fail.
//!
//! `POST /charges` with an `Idempotency-Key` charges once per key: 201, or 402 for amounts that end in 13, or 422 if the
//! key belongs to another charge. `GET /charges?idempotency_key=…` returns the charge or 404. `GET /charges` lists all, or
//! a page (`?after=N&limit=N`), with the number of requests. [`ChargeFaults`] breaks requests.

mod charge_book;
mod faults;
mod http_responses;
mod webhook;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::client::{Client, TestRequest, TestResponse};
use charge_book::ChargeBook;
use faults::FaultDice;
pub use faults::{ChargeFaults, ChargeFaultsError};
use http_responses::Pages;
pub use webhook::WebhookSecret;
use webhook::Webhooks;

/// Settings of a [`CardProcessor`].
#[derive(Clone, Debug)]
pub struct ProcessorOptions {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Faults and their frequency.
    pub faults: ChargeFaults,
    /// Seed of the faults: the same seed gives the nth request the same fault.
    pub seed: u64,
    /// Address, path and secret of the merchant's webhook endpoint. Every new charge is reported there.
    pub webhook: Option<(SocketAddr, String, WebhookSecret)>,
    /// Charges again for a key that was charged before, like a processor without keys.
    pub ignore_keys: bool,
    /// File for the charges, so that a restarted processor remembers them.
    pub state: Option<PathBuf>,
}

impl Default for ProcessorOptions {
    fn default() -> ProcessorOptions {
        ProcessorOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            faults: ChargeFaults::default(),
            seed: 1,
            webhook: None,
            ignore_keys: false,
            state: None,
        }
    }
}

/// A running processor. It has its own thread, so a test may block. Dropping it closes every connection.
#[derive(Debug)]
pub struct CardProcessor {
    address: SocketAddr,
    /// Dropped, it stops the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CardProcessor {
    /// Starts a processor on a free port with these faults, in the notation of [`ChargeFaults::parse`].
    ///
    /// # Panics
    ///
    /// If the faults cannot be parsed, or the processor cannot start.
    pub fn with_faults(faults: &str) -> CardProcessor {
        let faults = ChargeFaults::parse(faults).unwrap_or_else(|error| panic!("{error}"));
        CardProcessor::start(ProcessorOptions { faults, ..ProcessorOptions::default() })
    }

    /// Starts a processor. It answers when this returns.
    ///
    /// # Panics
    ///
    /// If the address or the file cannot be used.
    pub fn start(options: ProcessorOptions) -> CardProcessor {
        let listener = std::net::TcpListener::bind(options.listen);
        let listener =
            listener.unwrap_or_else(|error| panic!("cannot listen on `{}`: {error}", options.listen));
        CardProcessor::start_on(listener, options)
    }

    /// Like [`CardProcessor::start`], on a listener that the caller has bound.
    ///
    /// # Panics
    ///
    /// If the listener or the file cannot be used.
    pub fn start_on(listener: std::net::TcpListener, options: ProcessorOptions) -> CardProcessor {
        listener.set_nonblocking(true).expect("a listener for tokio");
        let address = listener.local_addr().expect("a bound address");
        let book = ChargeBook::open(options.state.as_deref(), options.ignore_keys);
        let book = book.unwrap_or_else(|error| panic!("cannot use the state file: {error}"));
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let runtime = runtime.expect("a runtime starts");
            runtime.block_on(async {
                let webhooks = options.webhook.map(|(to, path, secret)| Webhooks::start(to, path, secret));
                let pages = Pages::new(book, FaultDice::new(options.faults, options.seed), webhooks);
                let listener = TcpListener::from_std(listener).expect("a listener for tokio");
                tokio::select! {
                    () = pages.serve(listener) => {}
                    _ = stopped => {}
                }
            });
            // A charge that is being written ends; a webhook that is being retried does not.
            runtime.shutdown_background();
        });
        CardProcessor { address, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends one request on its own connection.
    pub async fn call(&self, request: &TestRequest) -> TestResponse {
        Client::connect(self.address).await.call(request).await
    }

    /// Gets one page: its status and its JSON body.
    pub async fn get(&self, target: &str) -> (u16, Value) {
        let answer = self.call(&TestRequest::get(target)).await;
        (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
    }

    /// Returns one field of every charge, oldest first.
    ///
    /// # Panics
    ///
    /// If a charge does not have this field as text.
    pub async fn charges(&self, field: &str) -> Vec<String> {
        let (_, list) = self.get("/charges").await;
        let charges = list["charges"].as_array().expect("a list").iter();
        charges.map(|charge| charge[field].as_str().expect("a text").to_owned()).collect()
    }

    /// Returns the number of requests for charges, whatever became of them.
    pub async fn requests(&self) -> usize {
        let (_, list) = self.get("/charges").await;
        list["requests"].as_u64().expect("a number") as usize
    }
}

impl Drop for CardProcessor {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A request for a charge of `ann`.
pub fn charge_request(key: &str, amount_cents: i64) -> TestRequest {
    let body = json!({ "amountCents": amount_cents, "currency": "EUR", "customerId": "ann" });
    TestRequest::post("/charges").header("Idempotency-Key", key).body(body.to_string())
}
