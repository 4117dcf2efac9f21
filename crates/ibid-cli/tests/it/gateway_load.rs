//! A hundred thousand requests leave memory and file descriptors as they were. `scripts/soak` runs it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use ibid_testkit::client::TestRequest;
use ibid_testkit::upstream::Upstream;
use tokio::task::block_in_place;

use crate::harness::{Gateway, Setup};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_requests_leak_nothing() {
    let upstream = Upstream::start().await;
    upstream.behave("status=201;bytes=200");
    // A small cache is full after the warm-up, so any later growth is a leak.
    let setup = Setup::before(&upstream.url()).config("[store]\ncache_bytes = \"1MiB\"\n");
    let gateway = setup.start();
    assert_eq!(gateway.page("/readyz").await.status, 200);
    let at_first = gateway.sockets();
    let started = Instant::now();

    let fresh = block_in_place(|| drive(gateway.addr(), "warm", WARM_UP));
    let warm = at_rest(&gateway, at_first).await;
    let fresh = fresh + block_in_place(|| drive(gateway.addr(), "main", REQUESTS));
    let end = at_rest(&gateway, at_first).await;

    println!(
        "{WARM_UP} + {REQUESTS} requests ({fresh} fresh) in {:?}: descriptors {} -> {}, resident {} -> {} KiB",
        started.elapsed(),
        warm.descriptors,
        end.descriptors,
        warm.resident_kib,
        end.resident_kib
    );
    assert_eq!((upstream.total(), upstream.tally().repeated_keys().len()), (fresh, 0), "each key once");
    assert!(end.descriptors.abs_diff(warm.descriptors) <= FEW, "{} -> {}", warm.descriptors, end.descriptors);
    let grown = end.resident_kib.saturating_sub(warm.resident_kib);
    assert!(grown < GROWTH_KIB_MAX, "{} -> {} KiB", warm.resident_kib, end.resident_kib);
}

struct AtRest {
    descriptors: usize,
    resident_kib: u64,
}

/// Measures once the clients have gone and the gateway's idle connections are closed.
async fn at_rest(gateway: &Gateway, at_first: usize) -> AtRest {
    gateway.until_sockets(at_first).await;
    AtRest { descriptors: gateway.descriptors(), resident_kib: gateway.resident_kib() }
}

/// Sends so many requests over sixteen connections at a time, reads every response, and returns the number of fresh
/// keys.
fn drive(addr: SocketAddr, name: &str, requests: usize) -> usize {
    let share = requests / CONNECTIONS;
    let fresh = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS)
            .map(|n| {
                scope.spawn(move || (0..share / VISIT).map(|visit| self::visit(addr, name, n, visit)).sum())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a client ends well")).collect::<Vec<usize>>()
    });
    fresh.into_iter().sum()
}

/// Runs one connection with pipelined requests: one in sixteen has a fresh key, the others are retries of those.
fn visit(addr: SocketAddr, name: &str, connection: usize, visit: usize) -> usize {
    let mut stream = TcpStream::connect(addr).expect("the gateway accepts");
    stream.set_nodelay(true).expect("nodelay on a fresh socket");
    let mut fresh = 0;
    for burst in 0..VISIT / BURST {
        let mut bytes = Vec::new();
        for _ in 0..BURST / RETRIES {
            let key = format!("{name}-{connection}-{visit}-{burst}-{fresh}");
            fresh += 1;
            let one = TestRequest::post("/payments").key(&key).body("{\"amount\": 5}").to_bytes();
            (0..RETRIES).for_each(|_| bytes.extend_from_slice(&one));
        }
        stream.write_all(&bytes).expect("the gateway reads");
        read_answers(&mut stream, BURST);
    }
    fresh
}

/// Reads so many responses; each must be a 201 with 200 bytes.
fn read_answers(stream: &mut TcpStream, mut left: usize) {
    let (mut ahead, mut chunk) = (Vec::new(), [0; 32 * 1024]);
    while left > 0 {
        let n = stream.read(&mut chunk).expect("the gateway answers");
        assert!(n > 0, "the gateway closed with {left} answers to go");
        ahead.extend_from_slice(&chunk[..n]);
        let mut done = 0;
        while let Some(head) = ahead[done..].windows(4).position(|four| four == b"\r\n\r\n") {
            let end = done + head + 4 + 200;
            if ahead.len() < end {
                break;
            }
            let head = &ahead[done..done + head];
            assert!(head.starts_with(b"HTTP/1.1 201"), "{}", String::from_utf8_lossy(head));
            assert!(ahead[end - 200..end].iter().all(|byte| *byte == b'x'));
            (done, left) = (end, left - 1);
        }
        ahead.drain(..done);
    }
    assert!(ahead.is_empty(), "one answer for one request");
}

const WARM_UP: usize = 25_600;
const REQUESTS: usize = 102_400;

const CONNECTIONS: usize = 16;

/// Requests per connection. After these, the connection is closed and another one opened, so that both must be
/// released.
const VISIT: usize = 640;

/// Requests that are written before their responses are read.
const BURST: usize = 32;

/// Number of requests with each key.
const RETRIES: usize = 16;

/// Tolerance for files that are just being opened or closed.
const FEW: usize = 4;

/// Tolerance for the pages of new records that SQLite caches (bounded, some 8 MB here), and as much again for the
/// allocator. A leak of two hundred bytes per request would exceed it.
const GROWTH_KIB_MAX: u64 = 20 * 1024;
