//! A table for each test, on the server that all tests share.

use std::collections::HashMap;
use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::config::{Credentials, SharedCredentialsProvider};
use aws_sdk_dynamodb::types::AttributeValue;
use ibid_dynamodb::{DynamoOptions, DynamoStore, NodeClock, Shards, create_table};
use ibid_testkit::dynamodb::{DynamoDb, DynamoProxy};

/// Few shards, because a server on a test machine answers each query by itself.
pub(crate) const SHARDS: u16 = 2;

pub(crate) const SKEW_MAX: Duration = Duration::from_secs(5);

/// Returns a configuration for the server's tables with any credentials: DynamoDB Local accepts all.
pub(crate) fn sdk_config(server: &DynamoDb) -> SdkConfig {
    config_of(&server.url(), server)
}

/// Returns a configuration that sends through a proxy before the server.
pub(crate) fn sdk_config_via(proxy: &DynamoProxy, server: &DynamoDb) -> SdkConfig {
    config_of(&proxy.url(), server)
}

fn config_of(endpoint: &str, server: &DynamoDb) -> SdkConfig {
    let credentials = Credentials::new("test", "test", None, None, "test");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(server.region().to_owned()))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .sleep_impl(aws_sdk_dynamodb::config::SharedAsyncSleep::new(aws_smithy_async_sleep()))
        .endpoint_url(endpoint)
        .build()
}

fn aws_smithy_async_sleep() -> impl aws_sdk_dynamodb::config::AsyncSleep {
    #[derive(Debug)]
    struct Sleep;
    impl aws_sdk_dynamodb::config::AsyncSleep for Sleep {
        fn sleep(&self, length: Duration) -> aws_sdk_dynamodb::config::Sleep {
            aws_sdk_dynamodb::config::Sleep::new(tokio::time::sleep(length))
        }
    }
    Sleep
}

pub(crate) fn options(clock: &NodeClock) -> DynamoOptions {
    DynamoOptions::new("ibid").with(|options| {
        options.shards = Shards::new(SHARDS);
        options.skew_max = SKEW_MAX;
        options.clock = clock.clone();
    })
}

/// Creates the table if it is missing, and opens the store.
pub(crate) async fn open(server: &DynamoDb, clock: &NodeClock) -> DynamoStore {
    open_with(&sdk_config(server), options(clock)).await
}

/// Like [`open`], through a proxy.
pub(crate) async fn open_via(proxy: &DynamoProxy, server: &DynamoDb, clock: &NodeClock) -> DynamoStore {
    open_with(&sdk_config_via(proxy, server), options(clock)).await
}

pub(crate) async fn open_with(config: &SdkConfig, options: DynamoOptions) -> DynamoStore {
    create_table(config, &options).await.expect("the table is created");
    DynamoStore::open_with(config, options).await.expect("the store opens")
}

/// Returns all items of the table whose sort key has this prefix, as another program would see them.
pub(crate) async fn items(server: &DynamoDb, prefix: &str) -> Vec<HashMap<String, AttributeValue>> {
    let client = aws_sdk_dynamodb::Client::new(&sdk_config(server));
    let mut pages = client.scan().table_name("ibid").into_paginator().items().send();
    let mut items = Vec::new();
    while let Some(item) = pages.next().await {
        let item = item.expect("it answers");
        if item["k"].as_s().expect("a text").starts_with(prefix) {
            items.push(item);
        }
    }
    items
}

/// Returns a number of an item.
pub(crate) fn number(item: &HashMap<String, AttributeValue>, name: &str) -> Option<i64> {
    Some(item.get(name)?.as_n().expect("a number").parse().expect("a number"))
}

/// Seconds as microseconds, for [`NodeClock::set_shift`].
pub(crate) const SECOND: i64 = 1_000_000;
