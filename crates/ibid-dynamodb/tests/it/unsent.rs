//! Requests that never left: nothing was written, and the store says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use aws_sdk_dynamodb::config::IdentityCache;
use ibid_core::change::Commit;
use ibid_core::store::{Store, StoreError};
use ibid_dynamodb::{DynamoStore, NodeClock};
use ibid_testkit::contract::{TestRecord, commit, fresh};
use ibid_testkit::dynamodb::DynamoDb;
use ibid_testkit::tcp_hop::TcpHop;

use crate::fixture::{open, open_with, options, sdk_config};

const LEASE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_write_to_a_closed_port_is_unwritten() {
    let server = DynamoDb::shared();
    let server_port: u16 =
        server.url().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let hop = TcpHop::start(server_port).await;
    let port = hop.port();
    let config = sdk_config(&server).into_builder().endpoint_url(format!("http://127.0.0.1:{port}")).build();
    let store = open_with(&config, options(&NodeClock::default())).await;
    hop.close().await;
    let error = until_unwritten(&store).await;
    assert!(format!("{error:?}").contains("Connect"), "{error:?}");
    let _hop = TcpHop::start_at(port, server_port).await;
    let begin = Arc::new(fresh(&TestRecord::fresh(), LEASE));
    assert!(matches!(commit(&store, &begin).await, Commit::Done(_)), "it is new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_without_credentials_is_unwritten() {
    let server = DynamoDb::shared();
    let login = Login::default();
    let config = sdk_config(&server)
        .into_builder()
        .credentials_provider(SharedCredentialsProvider::new(login.clone()))
        .identity_cache(IdentityCache::no_cache())
        .build();
    let store = open_with(&config, options(&NodeClock::default())).await;
    login.is_gone.store(true, Ordering::SeqCst);
    until_unwritten(&store).await;
    login.is_gone.store(false, Ordering::SeqCst);
    let begin = Arc::new(fresh(&TestRecord::fresh(), LEASE));
    assert!(matches!(commit(&store, &begin).await, Commit::Done(_)), "the next request asks for others");
    // Another node sees only what was confirmed.
    let other = open(&server, &NodeClock::default()).await;
    assert!(other.load(begin.id).await.expect("it answers").is_some());
}

/// Begins new keys until an error proves that nothing was written, and returns it. The first tries may meet connections that broke.
async fn until_unwritten(store: &DynamoStore) -> StoreError {
    loop {
        let begin = Arc::new(fresh(&TestRecord::fresh(), LEASE));
        let error =
            store.commit(begin, Some(std::time::Instant::now() + LEASE)).await.expect_err("nothing is there");
        assert!(error.is_transient(), "{error:?}");
        if error.is_unwritten() {
            return error;
        }
    }
}

/// Credentials that can be gone.
#[derive(Clone, Debug, Default)]
struct Login {
    is_gone: Arc<AtomicBool>,
}

impl ProvideCredentials for Login {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::ready(match self.is_gone.load(Ordering::SeqCst) {
            true => Err(CredentialsError::not_loaded("they are gone")),
            false => Ok(Credentials::new("test", "test", None, None, "test")),
        })
    }
}
