//! Checks of a DynamoDB table.

use ibid_core::store::{Store, StoreError};
use ibid_dynamodb::{
    ClockState, DynamoOpenError, DynamoStore, TableCheckup, TableError, inspect_table, is_ttl_on,
};

use super::findings::{Finding, Grade, line, secret};
use crate::config::StoreUrl;
use crate::open_store::dynamodb::{cannot_open, options};
use crate::output::Failure;

pub(super) async fn look_at(url: &StoreUrl, text: &str, secrets: usize) -> Result<Vec<Finding>, Failure> {
    let options = options(url, text)?;
    let config = options.load_sdk_config().await;
    let checkup = inspect_table(&config, &options).await;
    let checkup = checkup.map_err(|error| cannot_open(url, &DynamoOpenError::Table(error)))?;
    let mut findings = vec![line("store", Grade::Ok, "DynamoDB", "it answers"), table(&checkup)];
    if checkup != TableCheckup::Fit {
        return Ok(findings);
    }
    findings.push(time_to_live(&is_ttl_on(&config, &options).await));
    let skew_max = options.skew_max;
    let store = match DynamoStore::inspect(&config, options).await {
        Ok(store) => store,
        Err(error) => {
            findings.push(line("settings", Grade::Bad, error.to_string(), "the gateway refuses to start"));
            return Ok(findings);
        }
    };
    findings.push(clock(store.clock_state(), skew_max));
    findings.push(line(
        "durability",
        Grade::Ok,
        "kept by the service",
        "a commit is in several zones before it is answered",
    ));
    let failed = |error: StoreError| cannot_open(url, &DynamoOpenError::Store(error));
    findings.push(secret(secrets, store.setting("secret").await.map_err(failed)?.is_some()));
    findings.push(super::identity::of(store.setting("identity").await.map_err(failed)?.as_deref()));
    findings.push(line(
        "open cases",
        Grade::Unseen,
        "not counted",
        "counting would read the whole table: `ibid keys list --state unknown`",
    ));
    Ok(findings)
}

fn table(checkup: &TableCheckup) -> Finding {
    match checkup {
        TableCheckup::Missing => {
            line("schema", Grade::Warning, "no such table", "run `ibid migrate`, or start the gateway once")
        }
        TableCheckup::Creating => {
            line("schema", Grade::Warning, "the service is creating the table", "look again in a minute")
        }
        TableCheckup::Unfit(why) => line("schema", Grade::Bad, why, "the gateway refuses to start on it"),
        TableCheckup::Fit => line("schema", Grade::Ok, "table and both indexes", "current"),
    }
}

fn time_to_live(is_on: &Result<bool, TableError>) -> Finding {
    let meaning = "the service deletes what the reaper does not reach";
    match is_on {
        Ok(true) => line("time to live", Grade::Ok, "on", meaning),
        Ok(false) => line("time to live", Grade::Warning, "off", format!("run `ibid migrate`: {meaning}")),
        Err(error) => line("time to live", Grade::Unseen, "not known", error.to_string()),
    }
}

fn clock(state: ClockState, skew_max: std::time::Duration) -> Finding {
    let bound =
        format!("nodes may differ by {skew_max:?}, so each must be within {:?} of the service", skew_max / 2);
    match state {
        ClockState::Within(micros) => {
            let distance = format!("at most {} ms from the service's", micros.unsigned_abs() / 1000);
            line("clock", Grade::Ok, distance, bound)
        }
        ClockState::Off(micros) => {
            let distance = format!("up to {} ms from the service's", micros.unsigned_abs() / 1000);
            line("clock", Grade::Bad, distance, format!("no new reservations: {bound}"))
        }
        ClockState::Unknown => {
            line("clock", Grade::Unseen, "the service sends no `Date`", format!("not known: {bound}"))
        }
        _ => line("clock", Grade::Unseen, "no recent reply proves it right", format!("not known: {bound}")),
    }
}
