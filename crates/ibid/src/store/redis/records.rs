//! Records of one store: loads them, reads them from replies, and commits changes one by one. `send_flight.rs` commits many at once.

use std::sync::Arc;
use std::time::Instant;

use ibid_core::change::{Change, Commit, Expect, InstantChange, Stamp, StoredRecord};
use ibid_core::evidence::USED_KEPT_FOR;
use ibid_core::policy::Policy;
use ibid_core::row::micros;
use ibid_core::scope::RecordId;
use ibid_core::time::Timestamp;
use redis::Value;

use super::error::Failure;
use super::key::{self, Bucket};
use super::nodes::Nodes;
use super::policies::RedisPolicies;
use super::reply::{bytes, number, time};
use super::script::{self, Script};
use super::{evidence, record_bytes};

/// The servers, and the policies that records name.
pub(super) struct RedisRecords {
    pub(super) nodes: Arc<Nodes>,
    pub(super) policies: Arc<RedisPolicies>,
}

impl RedisRecords {
    /// Loads a record with its response.
    pub(super) async fn load(&self, id: &RecordId) -> Result<Option<StoredRecord>, Failure> {
        let keys = [key::record(id), key::bodies(id)];
        let reply = self.nodes.run(&script::LOAD, Bucket::of(id), &keys, &[], None).await?;
        let Value::Array(parts) = reply else { return Err(Failure::reply()) };
        self.read(id, &parts).await
    }

    /// Reads the time, a record and the body of its response from a reply; `None` if there is no record.
    pub(super) async fn read(&self, id: &RecordId, parts: &[Value]) -> Result<Option<StoredRecord>, Failure> {
        self.read_stored(id, time(parts)?, parts.get(2..).unwrap_or_default()).await
    }

    /// Reads a record and the body of its response.
    pub(super) async fn read_stored(
        &self,
        id: &RecordId,
        now: Timestamp,
        stored: &[Value],
    ) -> Result<Option<StoredRecord>, Failure> {
        let Some(packed) = stored.first().and_then(bytes) else { return Ok(None) };
        let unreadable = |why| Failure::Lasting(Box::new(why));
        let number = record_bytes::policy_number(packed).map_err(unreadable)?;
        let policy = self.load_policy(id, number).await?;
        let body = stored.get(1).and_then(bytes);
        record_bytes::read(id, packed, body, policy, now).map(Some).map_err(unreadable)
    }

    async fn load_policy(&self, id: &RecordId, number: i64) -> Result<Arc<Policy>, Failure> {
        if let Some(policy) = self.policies.get(number) {
            return Ok(policy);
        }
        let bucket = Bucket::of(id);
        let name = number.to_be_bytes();
        let stored = self.nodes.run(&script::FIELD, bucket, &[bucket.policies()], &[&name], None).await?;
        let policy = bytes(&stored).and_then(Policy::from_bytes).map(Arc::new);
        let policy = policy.ok_or_else(|| Failure::Lasting("a policy is missing or can't be read".into()))?;
        self.policies.put(number, policy.clone());
        Ok(policy)
    }

    /// Commits a change, unless nothing may begin now.
    pub(super) async fn commit(&self, change: &Change, send_by: Option<Instant>) -> Result<Commit, Failure> {
        let begins = change.begins_attempt(send_by.is_some());
        let script = if begins { &script::COMMIT_BEGIN } else { &script::COMMIT };
        match self.send_change(script, change, send_by).await {
            // A full server refuses every begin before it looks. A key that is taken still gets its answer.
            Err(Failure::Refused(error)) if change.expect == Expect::Absent => {
                match self.load(&change.id).await? {
                    Some(stored) => Ok(Commit::Conflict(Some(Box::new(stored)))),
                    None => Err(Failure::Refused(error)),
                }
            }
            outcome => outcome,
        }
    }

    async fn send_change(
        &self,
        script: &Script,
        change: &Change,
        send_by: Option<Instant>,
    ) -> Result<Commit, Failure> {
        let bucket = Bucket::of(&change.id);
        let mut keys = vec![key::record(&change.id), key::bodies(&change.id), key::history(&change.id)];
        keys.extend([bucket.histories(), bucket.policies(), bucket.letter_order()]);
        keys.extend(bucket.orders());
        let event = change.uses.as_ref().map(evidence::event_id);
        if let Some(event) = &event {
            keys.extend(evidence::keys(&change.id, event));
        }
        let policy = change.draft.as_ref().map(|draft| (&draft.policy, self.policies.number(&draft.policy)));
        let (expect, version) = record_bytes::expectation(change.expect);
        let draft = record_bytes::draft(Vec::new(), change, policy.map_or(0, |(_, number)| number));
        let clears = change.clears_bodies
            || change.draft.as_ref().is_some_and(|draft| draft.created != InstantChange::Keep);
        let apart = record_bytes::bodies_apart(change);
        let lines: Vec<String> =
            change.history.iter().map(|line| format!("{}\0{}", line.what.name(), line.detail)).collect();
        let used_for = record_bytes::interval(Some(micros(USED_KEPT_FOR)));
        let body_count = (apart.len() / 2).to_string();
        let mut policy_bytes = Vec::new();
        loop {
            let clears: &[u8] = if clears { b"1" } else { b"0" };
            let mut arguments: Vec<&[u8]> = vec![change.id.as_bytes(), expect, &version, &draft, clears];
            arguments.extend([&policy_bytes[..], event.as_ref().map_or(b"", |event| event.as_bytes())]);
            arguments.extend([&used_for[..], body_count.as_bytes()]);
            arguments.extend(apart.iter().map(|part| &part[..]));
            arguments.extend(lines.iter().map(|line| line.as_bytes()));
            let send_by = send_by.map(tokio::time::Instant::from_std);
            let connection = self.nodes.connection_number();
            let reply = self.nodes.run(script, bucket, &keys, &arguments, send_by).await?;
            let Value::Array(parts) = reply else { return Err(Failure::reply()) };
            let [code, parts @ ..] = &parts[..] else { return Err(Failure::reply()) };
            match (number(code)?, policy) {
                (1, policy) => {
                    if let (Some((_, number)), Some(connection)) = (policy, connection)
                        && self.nodes.connection_number() == Some(connection)
                    {
                        self.policies.note_stored(connection, bucket, number);
                    }
                    return Ok(Commit::Done(Stamp { now: time(parts)? }));
                }
                (0, _) => {
                    let stored = self.read(&change.id, parts).await?;
                    return Ok(Commit::Conflict(stored.map(Box::new)));
                }
                // The first record of a bucket under this policy brings it along.
                (2, Some((policy, _))) if policy_bytes.is_empty() => policy_bytes = policy.to_bytes(),
                _ => return Err(Failure::reply()),
            }
        }
    }
}
