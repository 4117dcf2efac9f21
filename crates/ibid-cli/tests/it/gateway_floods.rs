//! Floods of hostile clients: honest clients are served as usual, and memory and descriptors stay within the
//! configured bounds.

use bytes::Bytes;
use ibid_testkit::client::TestRequest;
use ibid_testkit::upstream::Upstream;
use tokio::task::JoinSet;

use crate::h2_client::H2Client;
use crate::harness::{Gateway, Setup, is_replay, problem, until_async};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_endless_bodies_leaves_honest_clients_served() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).files(FILES).start();
    let alone = honest(&gateway, "alone").await;

    let mut flood = Vec::new();
    for _ in 0..8 {
        let client = H2Client::connect(gateway.addr()).await;
        for _ in 0..128 {
            let (answer, mut body) = client.open("PUT", "/x", &[]).await;
            body.send_data(Bytes::from_static(b"never over"), false).expect("the stream is open");
            flood.push((answer, body));
        }
    }
    let reached =
        async || (gateway.metric("ibid_limit_reached_total", "max_passed").await >= 900.0).then_some(());
    until_async("the flood has come in", reached).await;
    let during = honest(&gateway, "during").await;

    assert_eq!((alone, during), (HONEST, HONEST), "guarded and unguarded ones");
    assert_eq!(upstream.tally().repeated_keys().len(), 0);
    assert!(gateway.descriptors() < FILES as usize, "{}", gateway.descriptors());
    assert!(!gateway.log().contains("cannot accept connections"));
    drop(flood);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_stay_within_the_memory_bound() {
    let upstream = Upstream::start().await;
    upstream.behave(&format!("status=201;bytes={REPLY}"));
    let config =
        "[server]\nmax_buffered_bytes = \"16MiB\"\nmax_reply_bytes = \"8MiB\"\n[store]\ncache_bytes = 0\n";
    let gateway = Setup::before(&upstream.url()).config(config).start();
    let key = |n: usize| format!("k{n}");
    for n in 0..STORED {
        assert_eq!(gateway.call(&TestRequest::post("/pay").key(&key(n))).await.status, 201);
    }
    let before = gateway.resident_kib();

    // 4 × 100 × 512 KiB, none of which the clients read.
    let mut asked = JoinSet::new();
    for _ in 0..4 {
        let client = H2Client::connect_with_window(gateway.addr(), 0).await;
        for n in 0..100 {
            let key = key(n % STORED);
            let (answer, mut body) = client.open("POST", "/pay", &[("idempotency-key", &key)]).await;
            body.send_data(Bytes::new(), true).expect("the stream is open");
            asked.spawn(async move { (answer.await.map(|answer| answer.status().as_u16()), body) });
        }
    }
    let mut replays = Vec::new();
    while let Some(answered) = asked.join_next().await {
        let (status, stream) = answered.expect("no panic");
        if status.is_ok_and(|status| status == 201) {
            replays.push(stream);
        }
    }
    let grown = gateway.resident_kib().saturating_sub(before);
    println!("{} replays given and not read: +{grown} KiB", replays.len());
    assert!(grown < 64 * 1024, "400 replays would be 200 MiB, and it grew by {grown} KiB");

    // Honest clients retry refused requests, and each gets its response.
    for n in 0..STORED {
        let request = TestRequest::post("/pay").key(&key(n));
        let whole = until_async("an honest client gets its replay", async || {
            let answer = gateway.call(&request).await;
            match answer.status {
                503 => (problem(&answer) != "overloaded").then(|| panic!("{answer:?}")),
                _ => Some(answer),
            }
        })
        .await;
        assert_eq!((whole.status, is_replay(&whole), whole.body.len()), (201, true, REPLY));
    }
    assert_eq!(upstream.total(), STORED);
}

/// Sends guarded and unguarded requests of honest clients, each on a new connection, and returns how many got a
/// response.
async fn honest(gateway: &Gateway, name: &str) -> usize {
    let mut served = 0;
    for n in 0..HONEST / 2 {
        let guarded = gateway.call(&TestRequest::post("/pay").key(&format!("{name}-{n}"))).await;
        let unguarded = gateway.call(&TestRequest::get("/")).await;
        served += [guarded, unguarded].iter().filter(|answer| answer.status == 200).count();
    }
    served
}

const HONEST: usize = 80;
const FILES: u32 = 256;
const STORED: usize = 8;
const REPLY: usize = 512 * 1024;
