//! `ibid migrate`: creates or upgrades the tables of a store, or prints the statements for that.

use std::io::Write;

use ibid::store::postgres::{PostgresOptions, PostgresStore};

use crate::config::StoreUrl;
use crate::open_store::{cannot_open_postgres, open_store};
use crate::output::{Failure, print_line};

/// Brings the tables at `url` up to date and reports what it did. With `print`, prints the missing statements instead.
pub(crate) async fn run(url: &StoreUrl, print: bool, out: &mut dyn Write) -> Result<(), Failure> {
    match url {
        StoreUrl::Memory => Err(Failure::usage("a store in memory has no tables")),
        StoreUrl::Sqlite(_) if print => {
            Err(Failure::usage("only a PostgreSQL store has statements to print")
                .hint("`ibid migrate` and `ibid gateway` make and upgrade the file themselves"))
        }
        StoreUrl::Sqlite(path) => {
            let was_there = path.exists();
            open_store(url, true).await?;
            print_line(out, format_args!("{url}: {}", if was_there { "up to date" } else { "made" }))
        }
        StoreUrl::Postgres(address) if print => {
            let schema = PostgresStore::schema(address.reveal(), PostgresOptions::default()).await;
            let schema = schema.map_err(|error| cannot_open_postgres(url, &error))?;
            let sql = match schema == PostgresStore::newest_schema() {
                true => format!("-- {url}: schema {schema}, up to date"),
                false => PostgresStore::migration_sql(schema),
            };
            print_line(out, sql.trim_end())
        }
        StoreUrl::Postgres(address) => {
            let migrated = PostgresStore::migrate(address.reveal(), PostgresOptions::default()).await;
            let (before, after) = migrated.map_err(|error| cannot_open_postgres(url, &error))?;
            match (before, before == after) {
                (_, true) => print_line(out, format_args!("{url}: schema {after}, up to date")),
                (0, _) => print_line(out, format_args!("{url}: schema {after}, made")),
                _ => print_line(out, format_args!("{url}: schema {after}, upgraded from {before}")),
            }
        }
    }
}
