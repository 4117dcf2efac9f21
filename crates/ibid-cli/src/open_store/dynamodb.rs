//! Opens and creates DynamoDB tables, and advises what to do if that fails.

use std::sync::Arc;

use ibid_core::store::Store;
use ibid_dynamodb::{DynamoOpenError, DynamoOptions, DynamoStore, cloud_formation, create_table, terraform};

use crate::args::PrintFormat;
use crate::config::StoreUrl;
use crate::output::Failure;

/// Opens the store. With `create`, a missing table is created.
pub(super) async fn open(url: &StoreUrl, text: &str, create: bool) -> Result<Arc<dyn Store>, Failure> {
    if create {
        migrate(url, text).await?;
    }
    let store = DynamoStore::open(options(url, text)?).await;
    Ok(Arc::new(store.map_err(|error| cannot_open(url, &error))?))
}

/// Creates the table if it is missing. Returns whether it was.
pub(crate) async fn migrate(url: &StoreUrl, text: &str) -> Result<bool, Failure> {
    let options = options(url, text)?;
    let created = create_table(&options.load_sdk_config().await, &options).await;
    created.map_err(|error| cannot_open(url, &DynamoOpenError::Table(error)))
}

/// Returns the table for another tool.
pub(crate) fn template(url: &StoreUrl, text: &str, format: PrintFormat) -> Result<String, Failure> {
    let table = options(url, text)?.table;
    match format {
        PrintFormat::Cloudformation => Ok(cloud_formation(&table)),
        PrintFormat::Terraform => Ok(terraform(&table)),
        PrintFormat::Statements => Err(Failure::usage("a DynamoDB table has no statements to print")
            .hint("name the tool: `--print cloudformation` or `--print terraform`")),
    }
}

/// Reads the options from the URL.
pub(crate) fn options(url: &StoreUrl, text: &str) -> Result<DynamoOptions, Failure> {
    let failed = |error| Failure::usage(format!("`{url}` is not the URL of a table")).because_of(&error);
    DynamoOptions::from_url(text).map_err(failed)
}

/// Explains why a table can't be opened, with advice.
pub(crate) fn cannot_open(url: &StoreUrl, error: &DynamoOpenError) -> Failure {
    let hint = match error {
        DynamoOpenError::Missing(_) => "run `ibid migrate`, or start the gateway once",
        DynamoOpenError::Unfit { .. } => "name another table, which `ibid migrate` creates",
        DynamoOpenError::ClockOff { .. } => "run a time service on this node",
        DynamoOpenError::SkewOutOfRange(_) | DynamoOpenError::SmallerSkew { .. } => {
            "give all nodes the same `skew_max` in the URL"
        }
        DynamoOpenError::OtherShards { .. } => "the number of shards is set when a table is first used",
        DynamoOpenError::UnknownFormat => "use the ibid that wrote it, or a newer one",
        _ => "check region, credentials, endpoint and the policy of this role",
    };
    Failure::world(format!("cannot open the store at `{url}`")).because_of(error).hint(hint)
}
