//! `ibid doctor`: inspects a store without opening it, the front, and the upstream with a `HEAD /`, and reports problems. It changes
//! nothing.
//!
//! The facts come from the store (`checkup`), and `findings` interprets them. This module requests and prints them.

use std::io::Write;

use ibid::store::checkup::Checkup;
#[cfg(feature = "mysql")]
use ibid::store::mysql::{MysqlOptions, MysqlStore};
use ibid::store::postgres::{PostgresOptions, PostgresStore};
#[cfg(feature = "redis")]
use ibid::store::redis::RedisStore;
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use serde_json::json;

use self::findings::Finding;
use crate::config::{FrontConfig, StoreUrl, UpstreamSettings};
use crate::open_store::cannot_open;
use crate::output::{Failure, print_json, print_table};

#[cfg(feature = "dynamodb")]
mod dynamodb;
mod findings;
mod front;
mod identity;
mod lease;
mod next_hop;
mod tuning;
mod upstream;

/// The services that the gateway uses besides the store, as far as they are named.
#[derive(Clone, Copy)]
pub(crate) struct Targets<'a> {
    pub(crate) upstream: Option<&'a UpstreamSettings>,
    pub(crate) front: Option<&'a FrontConfig>,
}

/// Prints one line per check. `secrets` is the number of configured fingerprint secrets.
pub(crate) async fn run(
    url: &StoreUrl,
    secrets: usize,
    targets: Targets<'_>,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (mut findings, failure) = match look_at(url, secrets).await {
        Ok(findings) => (findings, None),
        Err(failure) if failure.exit == crate::output::Exit::Usage => return Err(failure),
        Err(failure) => (vec![findings::unreachable(&failure)], Some(failure)),
    };
    if let Some(config) = targets.front {
        findings.push(front::look_at(config).await);
    }
    let mut no_upstream = None;
    if let Some(settings) = targets.upstream {
        let probe = upstream::look_at(settings).await;
        findings.extend(probe.findings);
        no_upstream = probe.failure;
        if no_upstream.is_none() {
            findings.extend(next_hop::look_at(settings).await);
        }
    }
    let amiss = findings.iter().filter(|finding| finding.grade.is_amiss()).count();
    if as_json {
        let checks: Vec<_> = findings.iter().map(finding_json).collect();
        print_json(out, &json!({ "store": url.to_string(), "well": amiss == 0, "checks": checks }))?;
    } else {
        let row = |finding: &Finding| {
            let Finding { check, grade, found, meaning } = finding;
            vec![(*check).to_owned(), grade.name().to_owned(), found.clone(), meaning.clone()]
        };
        print_table(out, &COLUMNS, findings.iter().map(row).collect())?;
    }
    match (failure.or(no_upstream), amiss) {
        (Some(failure), _) => Err(failure),
        (None, 0) => Ok(()),
        (None, 1) => Err(Failure::no(format!("one thing is not as it should be at `{url}`"))),
        (None, many) => Err(Failure::no(format!("{many} things are not as they should be at `{url}`"))),
    }
}

async fn look_at(url: &StoreUrl, secrets: usize) -> Result<Vec<Finding>, Failure> {
    #[cfg(feature = "dynamodb")]
    if let StoreUrl::Dynamodb(text) = url {
        return dynamodb::look_at(url, text, secrets).await;
    }
    Ok(findings::of(&checkup(url).await?, secrets))
}

async fn checkup(url: &StoreUrl) -> Result<Checkup, Failure> {
    match url {
        #[cfg(feature = "dynamodb")]
        StoreUrl::Dynamodb(_) => unreachable!("it has its own checks"),
        StoreUrl::Memory => Err(Failure::usage("a store in memory is gone with its process")
            .hint("name the store that the gateway uses with `--store`")),
        StoreUrl::Sqlite(path) => {
            SqliteStore::checkup(path, SqliteOptions::default()).map_err(|error| cannot_open(url, &error))
        }
        StoreUrl::Postgres(address) => {
            let checkup = PostgresStore::checkup(address.reveal(), PostgresOptions::default()).await;
            checkup.map_err(|error| cannot_open(url, &error))
        }
        #[cfg(feature = "redis")]
        StoreUrl::Redis(address) => {
            let checkup = RedisStore::checkup(address.reveal()).await;
            checkup.map_err(|error| cannot_open(url, &error))
        }
        #[cfg(feature = "mysql")]
        StoreUrl::Mysql(address) => {
            let checkup = MysqlStore::checkup(address.reveal(), MysqlOptions::default()).await;
            checkup.map_err(|error| cannot_open(url, &error))
        }
    }
}

fn finding_json(finding: &Finding) -> serde_json::Value {
    let Finding { check, grade, found, meaning } = finding;
    json!({ "check": check, "result": grade.name(), "found": found, "meaning": meaning })
}

const COLUMNS: [&str; 4] = ["check", "result", "found", "meaning"];
