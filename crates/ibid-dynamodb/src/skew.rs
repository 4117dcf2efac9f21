//! The largest difference between the clocks of two nodes, on which all nodes of a table agree while they run.
//!
//! T1 (running, with 5 s) judges a lease of T2 (new, with 20 s, its clock 9 s slow) and takes it over while T2 runs. So T1
//! must know of the 20 s before T2 begins anything. The value is held like a lease, by reading: each node reads it every
//! few seconds and judges nothing by a read that is older than [`VALID_FOR`]. A node that raises it waits twice that long
//! before it begins, and so does each node that starts meanwhile: the setting [`IN_FORCE`] is raised after the wait.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ibid_core::store::{Store, StoreError};
use parking_lot::Mutex;

use crate::open::DynamoOpenError;
use crate::{DynamoStore, NAME};

/// The reads of the setting.
#[derive(Debug)]
pub(crate) struct SkewReads {
    valid_for: Duration,
    /// Instant at which the last read that got a reply was sent.
    last: Mutex<Option<Instant>>,
    /// Lets one read run at a time: a crowd of requests needs one reply.
    reading: tokio::sync::Mutex<()>,
}

impl SkewReads {
    pub(crate) fn new(valid_for: Duration) -> SkewReads {
        SkewReads { valid_for, last: Mutex::new(None), reading: tokio::sync::Mutex::default() }
    }

    /// Returns whether the last read is so old that it is time for another.
    pub(crate) fn is_old(&self) -> bool {
        self.is_older_than(self.valid_for / READS_PER_VALIDITY)
    }

    /// Returns whether the last read is too old to judge by.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_older_than(self.valid_for)
    }

    fn is_older_than(&self, age: Duration) -> bool {
        self.last.lock().is_none_or(|last| last.elapsed() > age)
    }
}

impl DynamoStore {
    /// Reads the value and judges by it from now on. The reply also shows whether the clock is right.
    pub(crate) async fn read_skew(&self, op: &'static str) -> Result<(), StoreError> {
        let asked_at = Instant::now();
        let _reading = self.skew.reading.lock().await;
        if self.skew.last.lock().is_some_and(|last| last >= asked_at) {
            return Ok(()); // Another caller has read it meanwhile.
        }
        let sent_at = Instant::now();
        if let Some(stored) = self.read_setting(op, SKEW).await? {
            let skew_max = parse(&stored)
                .ok_or_else(|| StoreError::lasting(NAME, op, "`skew_max` of an unknown version"))?;
            self.watch.raise_skew(skew_max);
        }
        *self.skew.last.lock() = Some(sent_at);
        Ok(())
    }

    /// Agrees on the value with all nodes, and waits if it was raised. A node with a smaller value than others is refused.
    pub(crate) async fn agree_on_skew(&self, ours: Duration) -> Result<(), DynamoOpenError> {
        for _ in 0..TRIES_MAX {
            let stored = self.put_if_absent(SKEW, text_of(ours)).await?;
            if compare(&stored, ours)? == Ordering::Less {
                // If it is lost, another node was faster, and the next round shows its value.
                let _ = self.compare_and_set(SKEW, Some(stored), text_of(ours)).await?;
                continue;
            }
            // Without this setting no node has opened the table yet.
            let in_force = self.put_if_absent(IN_FORCE, text_of(ours)).await?;
            if compare(&in_force, ours)? == Ordering::Equal {
                return Ok(());
            }
            let wait = 2 * self.skew.valid_for;
            tracing::info!(?wait, "`skew_max` was raised: waiting until every node knows");
            tokio::time::sleep(wait).await;
            let _ = self.compare_and_set(IN_FORCE, Some(in_force), text_of(ours)).await?;
        }
        Err(DynamoOpenError::UnknownFormat)
    }

    /// Compares the value with that of the table, if it has one.
    pub(crate) async fn check_skew(&self, ours: Duration) -> Result<(), DynamoOpenError> {
        let stored = self.setting(SKEW).await?;
        stored.map_or(Ok(()), |stored| compare(&stored, ours).map(drop))
    }
}

/// Compares a stored value with ours.
///
/// # Errors
///
/// Fails if it is greater.
fn compare(stored: &[u8], ours: Duration) -> Result<Ordering, DynamoOpenError> {
    let stored = parse(stored).ok_or(DynamoOpenError::UnknownFormat)?;
    match stored.cmp(&ours) {
        Ordering::Greater => Err(DynamoOpenError::SmallerSkew { stored, ours }),
        order => Ok(order),
    }
}

fn parse(stored: &[u8]) -> Option<Duration> {
    std::str::from_utf8(stored).ok()?.parse().ok().map(Duration::from_millis)
}

fn text_of(skew_max: Duration) -> Bytes {
    Bytes::from(skew_max.as_millis().to_string())
}

/// The value by which every node judges.
const SKEW: &str = "dynamodb skew_max";

/// The value by which every node that runs is known to judge.
const IN_FORCE: &str = "dynamodb skew_max in force";

/// Time for which a read of the setting counts, as for a read of the identity.
pub(crate) const VALID_FOR: Duration = Duration::from_secs(15);

/// Reads within the time for which one counts: two may fail.
const READS_PER_VALIDITY: u32 = 3;

/// Races with other nodes that start at the same time with other values.
const TRIES_MAX: u32 = 8;
