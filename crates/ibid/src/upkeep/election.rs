//! Elects the node that does a group of chores, so that a fleet does them once and not once per node.
//!
//! A setting of the store names the elected node and counts its heartbeats. Another node takes over if the setting has not
//! changed for half an interval, by its own monotonic clock: the clocks of two nodes are never compared.
//!
//! Invariant: correctness never depends on the election. Two nodes may be elected at once, after a pause of the store or of
//! a node; each of their writes is a compare-and-set. If the store can't say who is elected, this node does the chores.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use ibid_core::store::{SetOutcome, Store, StoreError};
use metrics::{counter, gauge};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use crate::ibid::Ibid;
use crate::random::random;
use crate::telemetry;

/// Says whether this node is elected for a group of chores.
pub(super) struct ElectionSlot {
    is_elected: watch::Sender<bool>,
    resigned: Notify,
}

impl Default for ElectionSlot {
    fn default() -> Self {
        ElectionSlot { is_elected: watch::Sender::new(false), resigned: Notify::new() }
    }
}

impl ElectionSlot {
    pub(super) fn is_elected(&self) -> bool {
        *self.is_elected.borrow()
    }

    /// Waits until this node is elected.
    pub(super) async fn wait_until_elected(&self) {
        self.wait_for(true).await;
    }

    /// Waits until this node is no longer elected.
    pub(super) async fn wait_until_replaced(&self) {
        self.wait_for(false).await;
    }

    /// Leaves the chores to another node, because this one can't do them now. If none takes them, this one is elected again.
    pub(super) fn resign(&self) {
        self.resigned.notify_one();
    }

    async fn wait_for(&self, value: bool) {
        // An error means that the sender is gone, and `self` owns it.
        let _ = self.is_elected.subscribe().wait_for(|is_elected| *is_elected == value).await;
    }

    /// Stands for election until dropped. `role` names the chores, and what only some nodes can do: nodes with different
    /// roles are elected independently. `every` is the shortest interval of the chores.
    ///
    /// Dropping the future releases the role, so that another node need not wait.
    pub(super) async fn campaign(
        &self,
        ibid: &Ibid,
        group: &'static str,
        role: impl Fn() -> String,
        every: Duration,
    ) {
        let every = every.max(ELECTION_EVERY_MIN);
        let mut candidate = ElectionCandidate::new(ibid, role(), every / STALE_PARTS);
        let beat_every = every / BEAT_PARTS;
        loop {
            let wanted = role();
            if wanted != candidate.role {
                // Dropping the old candidate releases its role.
                candidate = ElectionCandidate::new(ibid, wanted, every / STALE_PARTS);
            }
            let is_elected = self.beat(&mut candidate, group, beat_every).await;
            self.publish(group, is_elected);
            if timeout(candidate.pause(beat_every), self.resigned.notified()).await.is_ok() {
                candidate = ElectionCandidate::new(ibid, role(), every / STALE_PARTS);
                self.is_elected.send_replace(false);
                tokio::time::sleep(beat_every * RESIGNED_BEATS).await;
            }
        }
    }

    /// Sends one heartbeat and returns whether this node is elected. While the store does not answer, this node does the chores.
    async fn beat(
        &self,
        candidate: &mut ElectionCandidate,
        group: &'static str,
        beat_every: Duration,
    ) -> bool {
        // Unwind safety: a candidate changes after the store has answered, in one step.
        let mut beat = pin!(AssertUnwindSafe(candidate.beat()).catch_unwind());
        loop {
            // One at a time, however long it takes: a write that is dropped may still hold its connection, and a store that
            // hangs would be sent another one every second or two.
            match timeout(beat_every, &mut beat).await {
                Ok(Ok(Ok(is_elected))) => return is_elected,
                Ok(Ok(Err(error))) => {
                    tracing::debug!(group, error = &error as &dyn std::error::Error, "election failed");
                    return true;
                }
                Ok(Err(_)) => {
                    counter!(telemetry::CHORE_PANICS, "chore" => "election").increment(1);
                    tracing::error!(group, "election panicked; the next heartbeat is sent as usual");
                    return true;
                }
                Err(_) => self.publish(group, true),
            }
        }
    }

    fn publish(&self, group: &'static str, is_elected: bool) {
        gauge!(telemetry::UPKEEP_ELECTED, "group" => group).set(f64::from(u8::from(is_elected)));
        self.is_elected.send_if_modified(|was| std::mem::replace(was, is_elected) != is_elected);
    }
}

/// This node as a candidate for one role.
struct ElectionCandidate {
    ibid: Ibid,
    role: String,
    /// Drawn at random, and equal in every value that this candidate writes.
    owner: String,
    beats: u64,
    /// The value that this candidate wrote last, while it is elected.
    held: Option<Bytes>,
    /// The value of another node, and when this node first read it.
    seen: Option<(Bytes, Instant)>,
    stale_after: Duration,
}

impl ElectionCandidate {
    fn new(ibid: &Ibid, role: String, stale_after: Duration) -> ElectionCandidate {
        let owner = format!("{:016x}", u64::from_be_bytes(random()));
        ElectionCandidate { ibid: ibid.clone(), role, owner, beats: 0, held: None, seen: None, stale_after }
    }

    /// Renews the election, or takes a role that is free or whose node is silent. Returns whether this node is elected.
    async fn beat(&mut self) -> Result<bool, StoreError> {
        let store: Arc<dyn Store> = self.ibid.store().clone();
        let name = format!("{SETTING}{}", self.role);
        let expected = match &self.held {
            Some(held) => Some(held.clone()),
            None => match store.setting(&name).await? {
                Some(stored) if !self.may_replace(&stored) => return Ok(false),
                stored => stored,
            },
        };
        self.beats += 1;
        // The owner and the count make each value unique: a store takes an equal value for the caller's own write.
        let value = Bytes::from(format!("{} {}", self.owner, self.beats));
        self.held = match store.compare_and_set(&name, expected, value.clone()).await? {
            SetOutcome::Won => Some(value),
            // The reply to an earlier beat was lost.
            SetOutcome::Lost(Some(stored)) if stored.starts_with(self.owner.as_bytes()) => Some(stored),
            SetOutcome::Lost(stored) => {
                self.seen = stored.map(|stored| (stored, Instant::now()));
                None
            }
        };
        Ok(self.held.is_some())
    }

    /// Returns whether a stored value is free, this candidate's own, or that of a node that is silent.
    fn may_replace(&mut self, stored: &Bytes) -> bool {
        if stored.starts_with(FREE) || stored.starts_with(self.owner.as_bytes()) {
            return true;
        }
        match &self.seen {
            Some((seen, at)) if seen == stored => at.elapsed() >= self.stale_after,
            _ => {
                self.seen = Some((stored.clone(), Instant::now()));
                false
            }
        }
    }

    /// Returns the time until the next beat, or until the other node has been silent for too long.
    fn pause(&self, beat_every: Duration) -> Duration {
        match &self.seen {
            Some((_, at)) if self.held.is_none() => {
                let left = self.stale_after.saturating_sub(at.elapsed());
                if left.is_zero() { beat_every } else { left.min(beat_every) }
            }
            _ => beat_every,
        }
    }
}

impl Drop for ElectionCandidate {
    /// Releases the role. If that fails, another node takes it over as from a node that died.
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        let value = Bytes::from(format!("{} {} {}", FREE_TEXT, self.owner, self.beats));
        let (ibid, name) = (self.ibid.clone(), format!("{SETTING}{}", self.role));
        let guard = ibid.engine().drain.track();
        let runtime = ibid.engine().runtime.clone();
        runtime.spawn(async move {
            let released = ibid.store().compare_and_set(&name, Some(held), value).await;
            if let Err(error) = released {
                tracing::debug!(error = &error as &dyn std::error::Error, "upkeep role not released");
            }
            drop(guard);
        });
    }
}

/// Names of the settings: this and the role.
const SETTING: &str = "upkeep:";

/// Start of the value of a role that was released. No owner starts like this, because owners are hexadecimal.
const FREE_TEXT: &str = "free";
const FREE: &[u8] = FREE_TEXT.as_bytes();

/// Heartbeats in one interval. A node that reads between two of them sees a change at least every third of the interval.
const BEAT_PARTS: u32 = 3;

/// Heartbeats for which a node that has resigned does not stand. Every other node looks at the role once per heartbeat, so by then it
/// has seen that the role is free.
const RESIGNED_BEATS: u32 = 2;

/// Part of the interval after which an unchanged value is stale. A node that dies right after a heartbeat is read a third of
/// the interval later at most, and replaced half an interval after that: within one interval. A heartbeat that is late by a
/// sixth of the interval costs one election, and the chores are then done twice, which is safe.
const STALE_PARTS: u32 = 2;

/// Shortest interval that elections use. With less, a slow commit would look like a dead node.
const ELECTION_EVERY_MIN: Duration = Duration::from_secs(1);
