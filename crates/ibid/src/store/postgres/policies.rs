//! Policies in the database: stored before the first record that names them.

use std::collections::HashMap;
use std::sync::Arc;

use ibid_core::policy::Policy;
use ibid_core::row::micros;
use tokio_postgres::Error;
use tokio_postgres::types::Type;

use super::connection::{OPEN_HOT, Param, PostgresConnection};
use crate::store::policy_cache::{NumberedPolicy, PolicyCache, RowPolicies};

/// Returns the policies that rows name, and reads those that are not known yet.
pub(super) async fn learn(
    policies: &PolicyCache,
    connection: &PostgresConnection,
    named: impl Iterator<Item = i64>,
) -> Result<RowPolicies, Error> {
    let (mut found, unread) = policies.look_up(named);
    if unread.is_empty() {
        return Ok(found);
    }
    let sql = include_str!("sql/policy_load.sql");
    let rows = connection.query_once(sql, &[(&unread, Type::INT8_ARRAY)]).await?;
    let mut read = Vec::with_capacity(rows.len());
    for row in rows {
        // A policy that cannot be read is like one that is missing: the row that names it is unreadable.
        if let Some(policy) = Policy::from_bytes(row.try_get(1)?) {
            read.push((row.try_get(0)?, policy));
        }
    }
    policies.learn(&mut found, read.into_iter());
    Ok(found)
}

/// Stores those of `policies` that `connection` does not know to be stored, in their own transaction. A record that names a
/// policy is written after that.
pub(super) async fn ensure_stored(
    connection: &PostgresConnection,
    policies: &[Arc<NumberedPolicy>],
) -> Result<(), Error> {
    let unsure = connection.unsure_policies(policies.iter().map(|policy| policy.digest));
    if unsure.is_empty() {
        return Ok(());
    }
    // Two Arcs may have one content.
    let by_digest: HashMap<i64, &NumberedPolicy> = policies
        .iter()
        .filter(|policy| unsure.contains(&policy.digest))
        .map(|policy| (policy.digest, &**policy))
        .collect();
    let all = || by_digest.values().copied();
    let digests: Vec<i64> = all().map(|policy| policy.digest).collect();
    let data: Vec<&[u8]> = all().map(|policy| &policy.data[..]).collect();
    let lease: Vec<i64> = all().map(|policy| micros(policy.policy.lease)).collect();
    let ahead: Vec<i64> =
        all().map(|policy| micros(policy.policy.retention) - micros(policy.policy.lease)).collect();
    let keep: Vec<i64> =
        all().map(|policy| micros(policy.policy.retention.saturating_add(policy.policy.tombstone))).collect();
    let params: [Param<'_>; 5] = [
        (&digests, Type::INT8_ARRAY),
        (&data, Type::BYTEA_ARRAY),
        (&lease, Type::INT8_ARRAY),
        (&ahead, Type::INT8_ARRAY),
        (&keep, Type::INT8_ARRAY),
    ];
    connection.transaction(OPEN_HOT, [(include_str!("sql/policy_put.sql"), &params)]).await?;
    connection.trust_policies(digests);
    Ok(())
}
