//! Holds the store's identity like a lease, by reading: a process acts only while its last read of the setting is recent
//! and showed the identity that the process started with as active.
//!
//! T1 (new identity) looks up a key's old id, finds nothing, reserves the new id and runs; T2 (old identity) reserves the
//! old id and runs. So T2 must stop before T1 starts. `ibid identity change` retires the identity and waits twice
//! `valid_for`; T2 acts no later than `valid_for` after its last good read, which was before that. A list of nodes would
//! have to know the paused ones as well; this needs none.

use std::sync::Weak;
use std::time::Duration;

use ibid_core::store::Store;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Engine;
use super::retry_after::{RETRY_AFTER_MIN, UnavailableError};
use crate::identity::{Agreement, IdentityPhase, IdentitySetting, SETTING};

/// The identity that a process holds. A process for upkeep only holds none and is not restricted.
#[derive(Debug, Default)]
pub(crate) struct IdentityWatch(Option<HeldIdentity>);

#[derive(Debug)]
struct HeldIdentity {
    started_with: IdentitySetting,
    last_read: Mutex<LastRead>,
    /// Lets one read run at a time: a crowd of requests after a pause needs one reply.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy, Debug)]
struct LastRead {
    /// Instant at which the last read that got a reply was sent.
    at: Instant,
    /// `true` if that read showed the identity as active.
    is_active: bool,
    /// Reads so far, with or without a reply.
    reads: u64,
}

impl IdentityWatch {
    pub(super) fn holding(agreement: Agreement) -> IdentityWatch {
        let last_read = LastRead { at: agreement.read_at, is_active: true, reads: 0 };
        IdentityWatch(Some(HeldIdentity {
            started_with: agreement.setting,
            last_read: Mutex::new(last_read),
            reading: tokio::sync::Mutex::default(),
        }))
    }

    /// Returns whether this process may act on its identity now. If the last read is too old it reads once more, within
    /// `patience`; that read is no older than this call.
    pub(crate) async fn confirm(&self, store: &dyn Store, patience: Duration) -> bool {
        let Some(held) = &self.0 else { return true };
        let last = held.last_read();
        if !last.is_active || held.is_fresh(last) {
            // A retired identity is read again by the task only, not once per request.
            return last.is_active;
        }
        let _reading = held.reading.lock().await;
        // Another caller may have read meanwhile.
        if held.last_read().reads == last.reads {
            held.read(store, patience).await;
        }
        let last = held.last_read();
        last.is_active && held.is_fresh(last)
    }

    /// Returns whether the last read showed the identity as active, however old that read is.
    pub(crate) fn is_active(&self) -> bool {
        self.0.as_ref().is_none_or(|held| held.last_read().is_active)
    }

    /// Returns how long a client should wait before it retries: the next read may show the identity as active.
    pub(crate) fn retry_in(&self) -> Duration {
        self.0.as_ref().map_or(Duration::ZERO, HeldIdentity::read_every)
    }

    /// Returns the identities before this one whose ids are still looked up, newest first.
    #[cfg(feature = "http")]
    pub(crate) fn previous(&self) -> &[crate::identity::PreviousIdentity] {
        self.0.as_ref().map_or(&[], |held| &held.started_with.previous)
    }

    /// Returns the identity that the process started with.
    pub(crate) fn setting(&self) -> Option<&IdentitySetting> {
        self.0.as_ref().map(|held| &held.started_with)
    }
}

impl HeldIdentity {
    fn last_read(&self) -> LastRead {
        *self.last_read.lock()
    }

    fn is_fresh(&self, last: LastRead) -> bool {
        last.at.elapsed() < self.started_with.valid_for
    }

    /// Returns the pause between reads. Three reads fit into the time that one is valid for, so one lost read refuses no
    /// request.
    fn read_every(&self) -> Duration {
        self.started_with.valid_for / 3
    }

    async fn read(&self, store: &dyn Store, patience: Duration) {
        let sent_at = Instant::now();
        let read = tokio::time::timeout(patience, store.setting(SETTING)).await;
        let mut last = self.last_read.lock();
        last.reads += 1;
        // Without a reply the last read counts, until it is too old.
        let Ok(Ok(text)) = read else { return };
        let is_active = text.is_some_and(|text| self.is_ours(&text));
        match (last.is_active, is_active) {
            (true, false) => tracing::warn!(
                "store identity retired: no keys are reserved here until a restart with the new configuration"
            ),
            (false, true) => tracing::info!("store identity is active again"),
            _ => {}
        }
        (last.at, last.is_active) = (sent_at, is_active);
    }

    /// Returns whether the stored setting shows the identity that this process started with as active. The generation
    /// decides, not the rules: after a change there and back the rules are the same, but this process would not look up the
    /// ids of records from the time between.
    fn is_ours(&self, text: &[u8]) -> bool {
        IdentitySetting::parse(text).is_ok_and(|setting| {
            setting.phase == IdentityPhase::Active && setting.generation == self.started_with.generation
        })
    }
}

impl Engine {
    /// Returns whether this process may act on its identity now.
    pub(crate) async fn confirm_identity(&self) -> bool {
        self.identity.confirm(&*self.store, self.begin_timeout).await
    }

    /// Refuses a request because this process may not act on its identity.
    pub(crate) fn without_identity(&self) -> UnavailableError {
        UnavailableError::refused_early(self.identity.retry_in().max(RETRY_AFTER_MIN))
    }
}

/// Reads the identity from time to time, for as long as the engine lives.
pub(super) async fn keep_reading(engine: Weak<Engine>) {
    loop {
        let Some(live) = engine.upgrade() else { return };
        let Some(pause) = live.identity.0.as_ref().map(HeldIdentity::read_every) else { return };
        drop(live);
        tokio::time::sleep(pause).await;
        let Some(live) = engine.upgrade() else { return };
        if let Some(held) = &live.identity.0 {
            let _reading = held.reading.lock().await;
            held.read(&*live.store, pause).await;
        }
    }
}
