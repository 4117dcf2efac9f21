//! Creating a table, and the checks at start.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use ibid_core::change::{Change, Commit};
use ibid_core::store::{Durability, RenewOutcome, Store};
use ibid_dynamodb::{
    DynamoOpenError, DynamoStore, NodeClock, Shards, TableCheckup, cloud_formation, create_table,
    inspect_table, is_ttl_on, terraform,
};
use ibid_testkit::contract::{TestRecord, finish_with, fresh, put};
use ibid_testkit::dynamodb::{DynamoDb, ProxyAction};

use crate::fixture::{SHARDS, SKEW_MAX, open_with, options, sdk_config, sdk_config_via};

const LEASE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_created_once_and_opened_by_nodes_that_agree() {
    let server = DynamoDb::shared();
    let (config, options) = (sdk_config(&server), options(&NodeClock::default()));
    assert_eq!(inspect_table(&config, &options).await.expect("it answers"), TableCheckup::Missing);
    let missing = DynamoStore::open_with(&config, options.clone()).await;
    assert!(matches!(missing, Err(DynamoOpenError::Missing(_))), "{missing:?}");
    assert!(create_table(&config, &options).await.expect("it is created"));
    assert!(
        !create_table(&config, &options).await.expect("it answers"),
        "the second time there is nothing to do"
    );
    assert_eq!(inspect_table(&config, &options).await.expect("it answers"), TableCheckup::Fit);
    DynamoStore::open_with(&config, options.clone()).await.expect("it opens");

    let with = async |change: &dyn Fn(&mut ibid_dynamodb::DynamoOptions)| {
        DynamoStore::open_with(&config, options.clone().with(|options| change(options))).await
    };
    let other = with(&|options| options.shards = Shards::new(SHARDS * 2)).await;
    assert!(matches!(other, Err(DynamoOpenError::OtherShards { .. })), "{other:?}");
    with(&|options| options.shards = None).await.expect("it takes what the table has");
    for skew_max in [Duration::from_millis(4999), Duration::from_secs(601)] {
        let refused = with(&|options| options.skew_max = skew_max).await;
        assert!(matches!(refused, Err(DynamoOpenError::SkewOutOfRange(_))), "{refused:?}");
    }
    let raise = |options: &mut ibid_dynamodb::DynamoOptions| {
        (options.skew_max, options.skew_valid_for) = (SKEW_MAX * 2, Duration::from_millis(1));
    };
    with(&raise).await.expect("a larger difference counts from now on");
    let smaller = with(&|options| options.skew_max = SKEW_MAX).await;
    assert!(matches!(smaller, Err(DynamoOpenError::SmallerSkew { .. })), "{smaller:?}");
}

/// Two nodes start on a table that does not exist: each sees that, and one is too late. The table is there before its time.
#[tokio::test(flavor = "multi_thread")]
async fn two_first_starts_make_one_table_and_wait_until_it_is_active() {
    let server = DynamoDb::shared();
    let options = options(&NodeClock::default());
    let looks = Arc::new(AtomicU32::new(0));
    let counter = looks.clone();
    let proxy = server.proxy(move |request| {
        let look = match request.operation.as_str() {
            "DescribeTable" => counter.fetch_add(1, Ordering::SeqCst),
            "GetItem" if counter.load(Ordering::SeqCst) < 4 => {
                return ProxyAction::error("ResourceNotFoundException");
            }
            _ => return ProxyAction::Pass,
        };
        match look {
            0 => ProxyAction::error("ResourceNotFoundException"),
            1 | 2 => ProxyAction::edit(|reply| reply.replace(r#""ACTIVE""#, r#""CREATING""#)),
            _ => ProxyAction::Pass,
        }
    });
    assert!(create_table(&sdk_config(&server), &options).await.expect("it is created"));
    let late = sdk_config_via(&proxy, &server);
    assert!(!create_table(&late, &options).await.expect("another node was first"));
    assert_eq!(looks.load(Ordering::SeqCst), 4, "it waited until the table was active");
    looks.store(1, Ordering::SeqCst);
    DynamoStore::open_with(&late, options).await.expect("a node that only opens it waits, too");
}

/// The process that made the table died before it switched time to live on.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_migration_switches_time_to_live_on() {
    let server = DynamoDb::shared();
    let (config, options) = (sdk_config(&server), options(&NodeClock::default()));
    let proxy = server.proxy(|request| match request.operation.as_str() {
        "UpdateTimeToLive" => ProxyAction::Answer(500, String::new()),
        _ => ProxyAction::Pass,
    });
    let dying = sdk_config_via(&proxy, &server);
    create_table(&dying, &options).await.expect_err("it dies");
    assert!(!is_ttl_on(&config, &options).await.expect("it answers"));
    assert!(!create_table(&dying, &options).await.expect("a role that may not do it can use the table"));
    assert!(!create_table(&config, &options).await.expect("it exists"));
    assert!(is_ttl_on(&config, &options).await.expect("it answers"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_global_table_is_refused() {
    let server = DynamoDb::shared();
    let options = options(&NodeClock::default());
    create_table(&sdk_config(&server), &options).await.expect("it is created");
    for global in [r#""Replicas":[{"RegionName":"us-east-1"}],"#, r#""GlobalTableVersion":"2019.11.21","#] {
        let proxy = server.proxy(move |request| match request.operation.as_str() {
            "DescribeTable" => ProxyAction::edit(move |reply| {
                reply.replace(r#""TableName""#, &format!(r#"{global}"TableName""#))
            }),
            _ => ProxyAction::Pass,
        });
        let opened = DynamoStore::open_with(&sdk_config_via(&proxy, &server), options.clone()).await;
        let Err(DynamoOpenError::Unfit { why, .. }) = opened else { panic!("{opened:?}") };
        assert!(why.contains("last writer wins"), "{why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_begins_on_a_table_that_became_global() {
    let server = DynamoDb::shared();
    let is_global = Arc::new(AtomicBool::new(false));
    let shown = is_global.clone();
    let proxy = server.proxy(move |request| match request.operation.as_str() {
        "DescribeTable" if shown.load(Ordering::SeqCst) => ProxyAction::edit(|reply| {
            reply.replace(r#""TableName""#, r#""Replicas":[{"RegionName":"us-east-1"}],"TableName""#)
        }),
        _ => ProxyAction::Pass,
    });
    let options =
        options(&NodeClock::default()).with(|options| options.inspect_every = Duration::from_millis(5));
    let store = open_with(&sdk_config_via(&proxy, &server), options).await;
    let begin = |id| {
        let deadline = Some(Instant::now() + LEASE);
        store.commit(Arc::new(Change { id, ..fresh(&TestRecord::fresh(), LEASE) }), deadline)
    };
    let completed = put(&store, &fresh(&TestRecord::fresh(), LEASE)).await.record;
    put(&store, &finish_with(&completed, b"done")).await;
    let running = put(&store, &fresh(&TestRecord::fresh(), LEASE)).await.record;
    is_global.store(true, Ordering::SeqCst);
    let refused = loop {
        if let Err(error) = begin(TestRecord::fresh().id).await {
            break error;
        }
    };
    assert!(refused.is_transient() && refused.is_unwritten() && refused.is_unsent(), "{refused:?}");
    assert!(format!("{refused:?}").contains("last writer wins"), "{refused:?}");
    let Durability::Weak { reason } = store.facts().durability else { panic!("the facts say so") };
    assert!(reason.contains("global table"), "{reason}");
    let again = begin(completed.id).await;
    assert!(matches!(again, Ok(Commit::Conflict(Some(_)))), "a stored key is answered: {again:?}");
    let renewed = store.renew(vec![(running.id, running.version)]).await.expect("it is renewed");
    assert!(matches!(renewed[..], [RenewOutcome::Until(_)]), "{renewed:?}");
    put(&store, &finish_with(&running, b"done")).await;
    is_global.store(false, Ordering::SeqCst);
    while begin(TestRecord::fresh().id).await.is_err() {}
    assert_eq!(store.facts().durability, Durability::Durable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_program_is_refused() {
    let server = DynamoDb::shared();
    let (config, options) = (sdk_config(&server), options(&NodeClock::default()));
    let client = aws_sdk_dynamodb::Client::new(&config);
    let attribute =
        AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S);
    let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash);
    let create = client.create_table().table_name(&options.table).billing_mode(BillingMode::PayPerRequest);
    let create = create.attribute_definitions(attribute.build().expect("complete"));
    create.key_schema(key.build().expect("complete")).send().await.expect("it is created");
    let opened = DynamoStore::open_with(&config, options).await;
    assert!(matches!(opened, Err(DynamoOpenError::Unfit { .. })), "{opened:?}");
}

#[test]
fn the_printed_templates_have_every_key_and_index() {
    let (formation, terraform) = (cloud_formation("pay"), terraform("pay"));
    for name in ["i", "k", "w", "d", "ro", "ra"] {
        assert!(formation.contains(&format!("- {{ AttributeName: {name}, AttributeType: ")), "{formation}");
        assert!(terraform.contains(&format!("    name = \"{name}\"\n")), "{terraform}");
    }
    for index in ["due", "reap"] {
        assert!(formation.contains(&format!("- IndexName: {index}\n")), "{formation}");
        assert!(terraform.contains(&format!("name            = \"{index}\"")), "{terraform}");
    }
    for template in [&formation, &terraform] {
        assert!(
            template.contains("pay") && template.contains("ttl_s") && template.contains("PAY_PER_REQUEST")
        );
    }
}
