//! `ibid migrate`: creates or upgrades the tables of a store, or prints the statements for that.

use std::io::Write;

use ibid::store::Migration;
#[cfg(feature = "mysql")]
use ibid::store::mysql::{MysqlOptions, MysqlStore};
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};

use crate::args::PrintFormat;
use crate::config::StoreUrl;
use crate::open_store::cannot_open;
#[cfg(feature = "dynamodb")]
use crate::open_store::dynamodb;
#[cfg(feature = "redis")]
use crate::open_store::open_store;
use crate::output::{Failure, print_line};

/// Brings the tables at `url` up to date and reports what it did. With `format`, prints what is missing instead.
pub(crate) async fn run(
    url: &StoreUrl,
    format: Option<PrintFormat>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let print = format.is_some();
    match url {
        StoreUrl::Memory => Err(Failure::usage("a store in memory has no tables")),
        #[cfg(feature = "dynamodb")]
        StoreUrl::Dynamodb(text) => match format {
            Some(format) => print_line(out, dynamodb::template(url, text, format)?.trim_end()),
            None => {
                let is_new = dynamodb::migrate(url, text).await?;
                print_line(out, format_args!("{url}: {}", if is_new { "made" } else { "up to date" }))
            }
        },
        _ if matches!(format, Some(PrintFormat::Cloudformation | PrintFormat::Terraform)) => {
            Err(Failure::usage("only a DynamoDB table can be printed for CloudFormation or Terraform"))
        }
        StoreUrl::Sqlite(_) if print => Err(Failure::usage("a SQLite store has no statements to print")
            .hint("`ibid migrate` makes and upgrades the file itself")),
        StoreUrl::Sqlite(path) => {
            let migrated = SqliteStore::migrate(path, SqliteOptions::default());
            print_result(url, migrated.map_err(|error| cannot_open(url, &error))?, out)
        }
        #[cfg(feature = "redis")]
        StoreUrl::Redis(_) if print => Err(Failure::usage("a Redis store has no tables and no statements")),
        #[cfg(feature = "redis")]
        StoreUrl::Redis(_) => {
            open_store(url, true).await?;
            print_line(out, format_args!("{url}: nothing to make, Redis has no tables"))
        }
        StoreUrl::Postgres(address) if print => {
            let schema = PostgresStore::schema(address.reveal(), PostgresOptions::default()).await;
            let schema = schema.map_err(|error| cannot_open(url, &error))?;
            let (newest, sql) = (PostgresStore::newest_schema(), PostgresStore::migration_sql(schema));
            print_statements(url, schema, newest, &sql, out)
        }
        StoreUrl::Postgres(address) => {
            let migrated = PostgresStore::migrate(address.reveal(), PostgresOptions::default()).await;
            print_result(url, migrated.map_err(|error| cannot_open(url, &error))?, out)
        }
        #[cfg(feature = "mysql")]
        StoreUrl::Mysql(address) if print => {
            let schema = MysqlStore::schema(address.reveal(), MysqlOptions::default()).await;
            let schema = schema.map_err(|error| cannot_open(url, &error))?;
            let (newest, sql) = (MysqlStore::newest_schema(), MysqlStore::migration_sql(schema));
            print_statements(url, schema, newest, &sql, out)
        }
        #[cfg(feature = "mysql")]
        StoreUrl::Mysql(address) => {
            let migrated = MysqlStore::migrate(address.reveal(), MysqlOptions::default()).await;
            print_result(url, migrated.map_err(|error| cannot_open(url, &error))?, out)
        }
    }
}

fn print_statements(
    url: &StoreUrl,
    schema: u32,
    newest: u32,
    sql: &str,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    match schema == newest {
        true => print_line(out, format_args!("-- {url}: schema {schema}, up to date")),
        false => print_line(out, sql.trim_end()),
    }
}

fn print_result(url: &StoreUrl, migration: Migration, out: &mut dyn Write) -> Result<(), Failure> {
    let Migration { before, after, .. } = migration;
    match (before, before == after) {
        (_, true) => print_line(out, format_args!("{url}: schema {after}, up to date")),
        (0, _) => print_line(out, format_args!("{url}: schema {after}, made")),
        _ => print_line(out, format_args!("{url}: schema {after}, upgraded from {before}")),
    }
}
