//! The table: creating it, checking it, and printing it for other tools.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection,
    ProjectionType, ScalarAttributeType, TableDescription, TableStatus, TimeToLiveSpecification,
    TimeToLiveStatus,
};

use crate::client::{connect, is_signed_off_time};
use crate::clock::ClockWatch;
use crate::open::DynamoOptions;

/// State of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a tool that reports a table has to report all of its states")]
pub enum TableCheckup {
    /// There is no such table.
    Missing,
    /// The service is still creating it.
    Creating,
    /// The store refuses the table.
    Unfit(String),
    /// The store can use the table.
    Fit,
}

/// Looks at a table without opening it.
///
/// # Errors
///
/// Fails if the service does not answer, or refuses the question.
///
/// # Cancel safety
///
/// Cancel safe: it only reads.
pub async fn inspect_table(config: &SdkConfig, options: &DynamoOptions) -> Result<TableCheckup, TableError> {
    describe(&client(config, options), &options.table).await
}

/// Creates the table and its indexes if the table is missing, waits until both can be used, and switches time to live on.
/// Returns whether this call created it.
///
/// Any number of processes may call this at once. A process that died in between is made up for by the next call.
///
/// # Errors
///
/// Fails if the service does not answer, or refuses. A table that exists, and whose time to live this role may not look at
/// or change, is only warned about.
///
/// # Cancel safety
///
/// If the future is dropped midway, the service may continue to create the table, and time to live may stay off. Call it
/// again: it does the rest.
pub async fn create_table(config: &SdkConfig, options: &DynamoOptions) -> Result<bool, TableError> {
    let client = client(config, options);
    let is_missing = describe(&client, &options.table).await? == TableCheckup::Missing;
    let is_new = is_missing && create(&client, &options.table).await?;
    if wait_until_active(&client, &options.table, is_missing).await? == TableCheckup::Fit
        && let Err(error) = switch_ttl_on(&client, &options.table).await
    {
        match is_new {
            true => return Err(error),
            false => tracing::warn!(%error, "not known whether time to live is on"),
        }
    }
    Ok(is_new)
}

/// Returns whether the service deletes items after their time to live.
///
/// # Errors
///
/// Fails if the service does not answer, or refuses the question.
///
/// # Cancel safety
///
/// Cancel safe: it only reads.
pub async fn is_ttl_on(config: &SdkConfig, options: &DynamoOptions) -> Result<bool, TableError> {
    has_ttl(&client(config, options), &options.table).await
}

/// Sends the request for a new table. Returns `false` if another process has sent it first.
async fn create(client: &Client, table: &str) -> Result<bool, TableError> {
    let mut create = client.create_table().table_name(table).billing_mode(BillingMode::PayPerRequest);
    for (name, kind) in ATTRIBUTES {
        let attribute = AttributeDefinition::builder()
            .attribute_name(name)
            .attribute_type(ScalarAttributeType::from(kind));
        create = create.attribute_definitions(attribute.build().map_err(TableError::permanent)?);
    }
    for key in key_schema("i", "k")? {
        create = create.key_schema(key);
    }
    for (name, hash, range) in INDEXES {
        let projection = Projection::builder().projection_type(ProjectionType::KeysOnly).build();
        let index =
            GlobalSecondaryIndex::builder().index_name(name).set_key_schema(Some(key_schema(hash, range)?));
        create = create
            .global_secondary_indexes(index.projection(projection).build().map_err(TableError::permanent)?);
    }
    match create.send().await {
        Ok(_) => Ok(true),
        Err(error) if error.as_service_error().is_some_and(|e| e.is_resource_in_use_exception()) => Ok(false),
        Err(error) => Err(TableError::of(error)),
    }
}

async fn switch_ttl_on(client: &Client, table: &str) -> Result<(), TableError> {
    if has_ttl(client, table).await? {
        return Ok(());
    }
    let ttl = TimeToLiveSpecification::builder().enabled(true).attribute_name(TTL).build();
    let ttl = ttl.map_err(TableError::permanent)?;
    match client.update_time_to_live().table_name(table).time_to_live_specification(ttl).send().await {
        Ok(_) => Ok(()),
        // Another process may have been faster, and the service refuses the second time.
        Err(_) if has_ttl(client, table).await? => Ok(()),
        Err(error) => Err(TableError::of(error)),
    }
}

async fn has_ttl(client: &Client, table: &str) -> Result<bool, TableError> {
    let request = client.describe_time_to_live().table_name(table);
    let reply = match request.clone().send().await {
        Err(error) if is_signed_off_time(&error) => request.send().await,
        reply => reply,
    };
    let reply = reply.map_err(TableError::of)?;
    let status = reply.time_to_live_description().and_then(|ttl| ttl.time_to_live_status());
    Ok(matches!(status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)))
}

fn client(config: &SdkConfig, options: &DynamoOptions) -> Client {
    connect(config, ClockWatch::new(options.clock.clone(), options.skew_max, options.clock_proven_for).into())
}

/// Looks at a table, and waits while the service creates it. A table that `was_requested` just now may still be missing.
pub(crate) async fn wait_until_active(
    client: &Client,
    table: &str,
    was_requested: bool,
) -> Result<TableCheckup, TableError> {
    for _ in 0..ACTIVE_LOOKS_MAX {
        match describe(client, table).await? {
            TableCheckup::Creating => {}
            TableCheckup::Missing if was_requested => {}
            checkup => return Ok(checkup),
        }
        tokio::time::sleep(ACTIVE_LOOK_EVERY).await;
    }
    Err(TableError { cause: "the table is not active in time".to_owned(), retryable: true })
}

pub(crate) async fn describe(client: &Client, table: &str) -> Result<TableCheckup, TableError> {
    let request = client.describe_table().table_name(table);
    let reply = match request.clone().send().await {
        // It is signed right now, and the check of the clock comes after this one.
        Err(error) if is_signed_off_time(&error) => request.send().await,
        reply => reply,
    };
    let reply = match reply {
        Ok(reply) => reply,
        Err(error) if error.as_service_error().is_some_and(|e| e.is_resource_not_found_exception()) => {
            return Ok(TableCheckup::Missing);
        }
        Err(error) => return Err(TableError::of(error)),
    };
    let Some(table) = reply.table() else { return Ok(TableCheckup::Missing) };
    Ok(match (table.table_status(), unfit(table)) {
        (Some(TableStatus::Creating), _) => TableCheckup::Creating,
        (_, Some(why)) => TableCheckup::Unfit(why),
        (_, None) => TableCheckup::Fit,
    })
}

/// Returns why a table cannot be used; `None` if it can.
fn unfit(table: &TableDescription) -> Option<String> {
    // In a global table the last writer wins, in every region for itself: two nodes would both win one key.
    if !table.replicas().is_empty() || table.global_table_version().is_some() {
        return Some("it is a global table, in which the last writer wins".to_owned());
    }
    let names = |keys: &[KeySchemaElement]| {
        keys.iter().map(|key| key.attribute_name().to_owned()).collect::<Vec<_>>()
    };
    if names(table.key_schema()) != ["i", "k"] {
        return Some("its key is not (`i`, `k`)".to_owned());
    }
    let is_there = |(name, hash, range): (&str, &str, &str)| {
        let mut indexes = table.global_secondary_indexes().iter();
        indexes.any(|index| index.index_name() == Some(name) && names(index.key_schema()) == [hash, range])
    };
    let missing = INDEXES.into_iter().find(|index| !is_there(*index));
    missing.map(|(name, hash, range)| format!("it has no index `{name}` with the key (`{hash}`, `{range}`)"))
}

fn key_schema(hash: &str, range: &str) -> Result<Vec<KeySchemaElement>, TableError> {
    let key = |name: &str, kind| KeySchemaElement::builder().attribute_name(name).key_type(kind).build();
    [key(hash, KeyType::Hash), key(range, KeyType::Range)]
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(TableError::permanent)
}

/// Returns the table as a CloudFormation template.
pub fn cloud_formation(table: &str) -> String {
    let attributes = ATTRIBUTES
        .map(|(name, kind)| format!("        - {{ AttributeName: {name}, AttributeType: {kind} }}\n"));
    let key = |hash: &str, range: &str, indent: &str| {
        format!(
            "{indent}KeySchema:\n{indent}  - {{ AttributeName: {hash}, KeyType: HASH }}\n{indent}  - {{ AttributeName: {range}, KeyType: RANGE }}\n"
        )
    };
    let indexes = INDEXES.map(|(name, hash, range)| {
        let keys = key(hash, range, "          ");
        format!("        - IndexName: {name}\n{keys}          Projection: {{ ProjectionType: KEYS_ONLY }}\n")
    });
    format!(
        "AWSTemplateFormatVersion: \"2010-09-09\"\nResources:\n  IbidTable:\n    Type: AWS::DynamoDB::Table\n    DeletionPolicy: Retain\n    \
         Properties:\n      TableName: {table}\n      BillingMode: PAY_PER_REQUEST\n      AttributeDefinitions:\n{}{}      \
         GlobalSecondaryIndexes:\n{}      TimeToLiveSpecification: {{ AttributeName: ttl_s, Enabled: true }}\n",
        attributes.concat(),
        key("i", "k", "      "),
        indexes.concat(),
    )
}

/// Returns the table as a Terraform resource.
pub fn terraform(table: &str) -> String {
    let attributes = ATTRIBUTES.map(|(name, kind)| {
        format!("\n  attribute {{\n    name = \"{name}\"\n    type = \"{kind}\"\n  }}\n")
    });
    let indexes = INDEXES.map(|(name, hash, range)| {
        format!(
            "\n  global_secondary_index {{\n    name            = \"{name}\"\n    hash_key        = \"{hash}\"\n    range_key       = \
             \"{range}\"\n    projection_type = \"KEYS_ONLY\"\n  }}\n"
        )
    });
    format!(
        "resource \"aws_dynamodb_table\" \"ibid\" {{\n  name         = \"{table}\"\n  billing_mode = \"PAY_PER_REQUEST\"\n  hash_key     = \
         \"i\"\n  range_key    = \"k\"\n{}{}\n  ttl {{\n    attribute_name = \"ttl_s\"\n    enabled        = true\n  }}\n}}\n",
        attributes.concat(),
        indexes.concat(),
    )
}

/// A table can't be created or looked at.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct TableError {
    cause: String,
    retryable: bool,
}

impl TableError {
    /// Returns whether a later try may succeed.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    fn of<E>(error: SdkError<E>) -> TableError
    where
        E: std::error::Error + ProvideErrorMetadata + Send + Sync + 'static,
    {
        let retryable = match &error {
            SdkError::ServiceError(service) => service.raw().status().is_server_error(),
            SdkError::ConstructionFailure(_) => false,
            _ => true,
        };
        TableError { cause: DisplayErrorContext(&error).to_string(), retryable }
    }

    fn permanent(error: impl std::fmt::Display) -> TableError {
        TableError { cause: error.to_string(), retryable: false }
    }
}

/// Attributes that are part of a key, and their types.
const ATTRIBUTES: [(&str, &str); 6] =
    [("i", "B"), ("k", "S"), ("w", "S"), ("d", "N"), ("ro", "S"), ("ra", "N")];

/// Indexes: name, hash key, range key.
const INDEXES: [(&str, &str, &str); 2] = [("due", "w", "d"), ("reap", "ro", "ra")];

/// Attribute for time to live.
const TTL: &str = "ttl_s";

/// Looks at a new table, one every [`ACTIVE_LOOK_EVERY`]: five minutes, and most tables are active within one.
const ACTIVE_LOOKS_MAX: u32 = 1500;

const ACTIVE_LOOK_EVERY: Duration = Duration::from_millis(200);
