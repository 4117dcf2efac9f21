//! DynamoDB: compares the engine with the textbook solution, on a DynamoDB Local started for it.
//!
//! The textbook solution takes two requests per key: a put on the condition that there is no item, and an update with the
//! response. Its table has no index, and its callers have a connection each. DynamoDB Local keeps its tables in memory and
//! says nothing about the service's latency, so look at the ratio: what the two orders of upkeep and the longer items cost.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Credentials;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use ibid_dynamodb::{DynamoOptions, DynamoStore, create_table};
use ibid_testkit::dynamodb::DynamoDb;
use serde_json::json;
use tokio::task::JoinSet;

use crate::store::measure;
use crate::{BenchError, TextbookArgs, payment, round_figure};

pub(crate) async fn run(args: &TextbookArgs) -> Result<(), BenchError> {
    let seconds = Duration::from_secs(args.seconds);
    let server = tokio::task::spawn_blocking(DynamoDb::start).await?;
    let config = sdk_config(&server).await;
    let options = DynamoOptions::new("ibid");
    create_table(&config, &options).await?;
    create_textbook_table(&Client::new(&config)).await?;
    let ibid = payment::engine(Arc::new(DynamoStore::open_with(&config, options).await?)).await?;
    // Java compiles what runs often, so both sides run before anything counts.
    textbook(&server, WARM_CALLERS, seconds).await?;
    measure(&ibid, WARM_CALLERS, seconds).await?;
    for callers in [1, 16, 64] {
        // The machine's speed changes from second to second, so each turn is compared with the one just before it.
        let mut turns = Vec::new();
        for _ in 0..args.rounds.get() {
            let theirs = textbook(&server, callers, seconds).await?;
            let (took, ours) = measure(&ibid, callers, seconds).await?;
            eprintln!("{callers} callers: p50 {} us", took.value_at_quantile(0.5));
            turns.push((ours / theirs, ours, theirs));
        }
        turns.sort_by(|one, other| one.0.total_cmp(&other.0));
        // There is at least one turn.
        let (ratio, ours, theirs) = turns[turns.len() / 2];
        let figures = json!({
            "what": "dynamodb", "callers": callers, "keys_per_second": ours.round(),
            "textbook_per_second": theirs.round(), "ratio": round_figure(ratio),
            "ratios": turns.iter().map(|turn| round_figure(turn.0)).collect::<Vec<_>>(),
        });
        println!("{figures}");
    }
    Ok(())
}

/// Measures the keys per second of the textbook solution. Each caller has a client, so a separate connection.
async fn textbook(server: &DynamoDb, callers: u32, seconds: Duration) -> Result<f64, BenchError> {
    let mut clients = Vec::new();
    for _ in 0..callers {
        clients.push(Client::new(&sdk_config(server).await));
    }
    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let started = Instant::now();
    let mut running = JoinSet::new();
    for (caller, client) in clients.into_iter().enumerate() {
        running.spawn(async move {
            let mut keys = 0_u64;
            while started.elapsed() < seconds {
                let key = AttributeValue::S(format!("textbook-{run:020x}-{caller:04x}-{keys:08x}"));
                let put = client.put_item().table_name(TABLE).item("key", key.clone());
                let put = put.item("state", AttributeValue::S("running".to_owned()));
                put.condition_expression("attribute_not_exists(#k)")
                    .expression_attribute_names("#k", "key")
                    .send()
                    .await?;
                let update = client.update_item().table_name(TABLE).key("key", key);
                update
                    .update_expression("SET #s = :s, #r = :r")
                    .expression_attribute_names("#s", "state")
                    .expression_attribute_names("#r", "response")
                    .expression_attribute_values(":s", AttributeValue::S("done".to_owned()))
                    .expression_attribute_values(":r", AttributeValue::S(payment::ANSWER.to_owned()))
                    .send()
                    .await?;
                keys += 1;
            }
            Ok::<u64, BenchError>(keys)
        });
    }
    let mut keys = 0;
    while let Some(called) = running.join_next().await {
        keys += called??;
    }
    Ok(keys as f64 / started.elapsed().as_secs_f64())
}

async fn create_textbook_table(client: &Client) -> Result<(), BenchError> {
    let attribute =
        AttributeDefinition::builder().attribute_name("key").attribute_type(ScalarAttributeType::S);
    let key = KeySchemaElement::builder().attribute_name("key").key_type(KeyType::Hash);
    let create = client.create_table().table_name(TABLE).billing_mode(BillingMode::PayPerRequest);
    create.attribute_definitions(attribute.build()?).key_schema(key.build()?).send().await?;
    Ok(())
}

/// Returns a configuration with any credentials: DynamoDB Local accepts all.
async fn sdk_config(server: &DynamoDb) -> SdkConfig {
    aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new(server.region().to_owned()))
        .credentials_provider(Credentials::new("bench", "bench", None, None, "bench"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .endpoint_url(server.url())
        .load()
        .await
}

const TABLE: &str = "textbook";

/// Callers that warm the server up.
const WARM_CALLERS: u32 = 16;
