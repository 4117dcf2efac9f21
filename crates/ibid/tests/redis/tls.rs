//! TLS by URL: the certificate is checked, and so is the name in it.

use std::sync::Arc;
use std::time::Duration;

use ibid::front::redis::{RedisFront, RedisFrontError, RedisFrontOptions};
use ibid::front::{SharedCache, SharedEntry};
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::store::redis::{RedisOpenError, RedisOptions, RedisStore};
use ibid_core::change::{Change, Stamp};
use ibid_core::response::Response;
use ibid_core::time::Timestamp;
use ibid_testkit::contract::{LONG, finish_with};
use ibid_testkit::program::free_port;
use ibid_testkit::redis::Redis;
use ibid_testkit::tls::Authority;

use super::{begin, put};

/// Starts a server with a certificate for `name`. Returns it, its port for TLS, and a folder with the authority's certificate.
fn server_named(name: &str) -> (Redis, u16, tempfile::TempDir) {
    let authority = Authority::new();
    let identity = authority.certificate(&[name]);
    let folder = tempfile::tempdir().expect("a folder");
    let files = [
        ("ca.pem", authority.pem()),
        ("server.crt", identity.certificate_pem),
        ("server.key", identity.key_pem),
    ];
    let paths = files.map(|(name, text)| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    });
    let port = free_port();
    let server = Redis::start_with(&[
        ("tls-port", &port.to_string()),
        ("tls-ca-cert-file", &paths[0]),
        ("tls-cert-file", &paths[1]),
        ("tls-key-file", &paths[2]),
        ("tls-auth-clients", "no"),
    ]);
    (server, port, folder)
}

#[tokio::test]
async fn a_trusted_certificate_for_this_host_is_taken_and_no_other() {
    let (_server, port, folder) = server_named("127.0.0.1");
    let open = async |port: u16, parameters: &str| {
        RedisStore::open(&format!("rediss://127.0.0.1:{port}{parameters}"), RedisOptions::default()).await
    };
    let roots = format!("?sslrootcert={}", folder.path().join("ca.pem").display());
    let store = open(port, &roots).await.expect("the store opens");
    put(&store, &begin()).await;
    let refused = |error: RedisOpenError| {
        assert!(
            matches!(error, RedisOpenError::Unreachable { .. } | RedisOpenError::Failed { .. }),
            "{error:?}"
        );
    };
    refused(open(port, "").await.expect_err("this authority is not trusted"));
    let missing = open(port, "?sslrootcert=/nowhere.pem").await.expect_err("no such file");
    assert!(matches!(missing, RedisOpenError::Tls { .. }), "{missing:?}");
    let (_other, port, folder) = server_named("redis.example");
    let roots = format!("?sslrootcert={}", folder.path().join("ca.pem").display());
    refused(open(port, &roots).await.expect_err("another name"));
}

#[tokio::test]
async fn a_front_takes_a_trusted_certificate_and_no_other() {
    let (server, port, folder) = server_named("127.0.0.1");
    let store = MemoryStore::new(Clock::system());
    let open = async |parameters: &str| {
        let options = RedisFrontOptions::default().with(|options| options.timeout = Duration::from_secs(20));
        RedisFront::open(&format!("rediss://127.0.0.1:{port}{parameters}"), &store, options).await
    };
    let applied = |change: &Change, before| {
        change.apply(Stamp { now: Timestamp::from_micros(1) }, before).expect("a record")
    };
    let running = applied(&begin(), None);
    let record = applied(&finish_with(&running, b"body"), Some(&running));
    let response = Arc::new(Response::plain(200, "text/plain", "paid".to_owned()));
    let entry = SharedEntry { record: record.clone(), response, read_at: Timestamp::from_micros(1) };
    // A server that does not prove who it is counts as away.
    let distrusting = open("").await.expect("it opens");
    distrusting.put(entry.clone(), LONG);
    assert!(distrusting.find(record.id).await.is_none());
    assert_eq!(server.cli(&["DBSIZE"]), "0", "nothing was sent to it");
    let roots = format!("?sslrootcert={}", folder.path().join("ca.pem").display());
    let front = open(&roots).await.expect("it opens");
    front.put(entry, LONG);
    while front.find(record.id).await.is_none() {
        tokio::task::yield_now().await;
    }
    let missing = open("?sslrootcert=/nowhere.pem").await.expect_err("no such file");
    assert!(matches!(missing, RedisFrontError::Tls { .. }), "{missing:?}");
}
