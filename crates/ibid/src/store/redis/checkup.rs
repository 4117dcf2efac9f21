//! Looks at a server and writes nothing, so that one which opening would refuse can still be described.

use std::time::{Duration, SystemTime};

use ibid_core::change::StoredRecord;
use ibid_core::record::State;
use ibid_core::store::{BrowseStore, RecordFilter, RowCount, Store};
use ibid_core::time::Timestamp;

use super::nodes::{CLOCKS_APART_MAX, Nodes};
use super::open::{Inspection, RedisOpenError, VERSION_MIN};
use super::{FORMAT, LAYOUT, RedisStore, key};
use crate::redis_target::RedisTarget;
use crate::store::checkup::{Checkup, ClockGap, OpenCases, Role, SERVER_CLOCKS, Schema, Setting};
use crate::store::run_times::{RunRow, RunSampler, RunTimes, SAMPLE_MAX};

/// Describes the server that a URL names.
pub(super) async fn look(url: &str) -> Result<Checkup, RedisOpenError> {
    let mut target = RedisTarget::parse(url)?;
    target.only_looks = true;
    let weak_accepted = target.accept_weak_durability;
    let asked_at = SystemTime::now();
    let (nodes, found) = Nodes::open(target).await?;
    let clock = clock_gap(&found, asked_at);
    let mut durability = found.settings();
    let apart = nodes.clocks_apart();
    if apart > CLOCKS_APART_MAX {
        durability.push(Setting {
            name: SERVER_CLOCKS,
            value: format!("{} ms apart", apart.as_millis()),
            is_weak: false,
        });
    }
    let store = RedisStore::on(nodes);
    // A server that refuses scripts has told enough about itself.
    let setting = async |name| store.setting(name).await.ok().flatten();
    let layout = setting(LAYOUT).await;
    let schema = match &layout {
        Some(layout) => schema(&String::from_utf8_lossy(layout)),
        None => Schema::Absent,
    };
    let eviction = found.eviction.as_deref().unwrap_or("not readable");
    let refusal = format!(
        "with `maxmemory-policy {eviction}` a full server deletes records: set `noeviction`, which ibid needs also with weak \
         durability"
    );
    Ok(Checkup {
        software: match &found.valkey {
            Some(version) => format!("Valkey {version}"),
            None => format!("Redis {}", found.version),
        },
        needs: found.is_too_old().then(|| VERSION_MIN.to_string()),
        schema,
        clock,
        durability,
        weak_accepted,
        role: if found.is_primary == Some(false) { Role::Standby } else { Role::Primary },
        standbys: None,
        pooler: None,
        has_secret: setting("secret").await.is_some(),
        identity: setting("identity").await,
        open_cases: if schema.is_usable() { open_cases(&store).await } else { None },
        runs: if schema.is_usable() { run_times(&store).await } else { None },
        tuning: None,
        refusals: if eviction == "noeviction" { Vec::new() } else { vec![refusal] },
        is_untested: found.valkey.is_some(),
    })
}

fn schema(layout: &str) -> Schema {
    let known = format!("{FORMAT}/{}", key::BUCKETS);
    match layout.split_once('/').and_then(|(format, _)| format.parse().ok()) {
        Some(found) if layout == known => Schema::Step { found, known: FORMAT },
        Some(found) if found > FORMAT => Schema::TooNew { found, known: FORMAT },
        _ => Schema::Altered { number: FORMAT },
    }
}

/// Compares the clocks. The server was asked at some instant since `asked_at`.
fn clock_gap(found: &Inspection, asked_at: SystemTime) -> Option<ClockGap> {
    let since = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let within = asked_at.elapsed().unwrap_or(Duration::ZERO) / 2;
    let middle = i64::try_from((since(asked_at) + within).as_micros()).unwrap_or(i64::MAX);
    (found.now_us != 0).then(|| ClockGap { ahead_us: found.now_us - middle, within })
}

async fn open_cases(store: &RedisStore) -> Option<OpenCases> {
    let counts = store.count().await.ok()?;
    let unknown = counts.by_state[usize::from(State::UNSETTLED.code()) - 1];
    let exact = |count: RowCount| count.value().unwrap_or(0);
    Some(OpenCases {
        unknown: exact(unknown),
        dead_letters: exact(counts.dead_letters),
        ..OpenCases::default()
    })
}

/// Computes run times from completed records: no order has the newest ones first, and any are a sample.
async fn run_times(store: &RedisStore) -> Option<Vec<RunTimes>> {
    let filter = RecordFilter::default().with(|filter| {
        (filter.state, filter.limit) = (Some(State::FINAL), u32::try_from(SAMPLE_MAX).unwrap_or(u32::MAX));
    });
    let records = store.list(filter).await.ok()?.items;
    let row = |stored: &StoredRecord| {
        let record = &stored.record;
        RunRow {
            policy: store.policies.number(&record.policy),
            state: record.state.code(),
            flags: record.flags.bits(),
            ran_at: record.ran_at.map(Timestamp::as_micros),
            completed_at: record.completed_at.map(Timestamp::as_micros),
            method: record.identity.operation.method.to_string(),
            path: record.identity.operation.path.to_string(),
            note: record.note.to_json(),
        }
    };
    let policy = |stored: &StoredRecord| {
        let policy = &stored.record.policy;
        (store.policies.number(policy), policy.to_bytes())
    };
    let sampler = RunSampler::of(records.iter().map(policy));
    Some(sampler.figures(records.iter().map(row).collect()))
}
