//! Policies in the database: stored before the first record that names them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use ibid_core::policy::Policy;
use ibid_core::row::micros;
use mysql_async::{Error, Value};

use super::connection::MysqlConnection;
use super::literal;
use super::row::integer;
use crate::store::policy_cache::{NumberedPolicy, PolicyCache, RowPolicies};

/// Returns the policies that rows name, and reads those that are not known yet.
pub(super) async fn learn(
    policies: &PolicyCache,
    connection: &mut MysqlConnection,
    named: impl Iterator<Item = i64>,
) -> Result<RowPolicies, Error> {
    let (mut found, unread) = policies.look_up(named);
    if unread.is_empty() {
        return Ok(found);
    }
    let mut text = include_str!("sql/policy_load.sql").trim_end().to_owned();
    push_list(&mut text, unread.iter(), |text, digest| literal::push_i64(text, *digest));
    let rows = connection.run(&text).await?;
    // A policy that cannot be read is like one that is missing: the row that names it is unreadable.
    let read = rows.iter().filter_map(|row| match &row[..] {
        [digest, Value::Bytes(data)] => Some((integer(digest)?, Policy::from_bytes(data)?)),
        _ => None,
    });
    policies.learn(&mut found, read);
    Ok(found)
}

/// Stores those of `policies` that `connection` does not know to be stored, in their own transaction. A record that names a
/// policy is written after that.
pub(super) async fn ensure_stored(
    connection: &mut MysqlConnection,
    policies: &[Arc<NumberedPolicy>],
) -> Result<(), Error> {
    let unsure = connection.policies.unsure(policies.iter().map(|policy| policy.digest), Instant::now());
    if unsure.is_empty() {
        return Ok(());
    }
    // Two Arcs may have one content. Locks are taken in the order of the digests.
    let by_digest: BTreeMap<i64, &NumberedPolicy> = policies
        .iter()
        .filter(|policy| unsure.contains(&policy.digest))
        .map(|policy| (policy.digest, &**policy))
        .collect();
    let mut text = include_str!("sql/policy_put.sql").to_owned();
    text.push_str("values ");
    for (nth, NumberedPolicy { policy, digest, data }) in by_digest.values().enumerate() {
        text.push_str(if nth == 0 { "(" } else { ", (" });
        literal::push_i64(&mut text, *digest);
        text.push_str(NOW_COLUMN);
        literal::push_i64(&mut text, micros(policy.lease));
        text.push_str(", ");
        literal::push_i64(&mut text, micros(policy.retention.saturating_add(policy.tombstone)));
        text.push_str(", ");
        literal::push_bytes(&mut text, data);
        text.push(')');
    }
    text.push_str(include_str!("sql/policy_seen.sql"));
    connection.run(&text).await?;
    connection.policies.trust(by_digest.into_keys(), Instant::now());
    Ok(())
}

/// Appends a list in parentheses.
pub(super) fn push_list<T>(text: &mut String, items: impl Iterator<Item = T>, push: impl Fn(&mut String, T)) {
    text.push_str(" (");
    for (nth, item) in items.enumerate() {
        if nth > 0 {
            text.push_str(", ");
        }
        push(text, item);
    }
    text.push(')');
}

const NOW_COLUMN: &str = ", timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)), ";
