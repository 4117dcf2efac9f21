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
use super::registered_secrets;
use super::retry_after::{RETRY_AFTER_MIN, UnavailableError};
use crate::identity::{Agreement, IdentityPhase, IdentitySetting, SETTING};

/// A process's knowledge of its store: the identity that it holds, and whether a copy keeps the store closed.
///
/// A process for upkeep only holds no identity. It begins nothing, but it delivers stored requests, calls providers and stores
/// evidence, and does none of that on a closed store.
#[derive(Debug, Default)]
pub(crate) struct IdentityWatch {
    started_with: Option<IdentitySetting>,
    last_read: Mutex<LastRead>,
    /// Lets one read run at a time: a crowd of requests after a pause needs one reply.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LastRead {
    /// Instant at which the last read that got a reply was sent; `None` before the first.
    at: Option<Instant>,
    /// Time for which that read is valid. Zero if no identity was stored.
    valid_for: Duration,
    /// `true` if that read showed the identity as active, on an open store.
    is_active: bool,
    /// `true` if that read showed that no copy keeps the store closed.
    is_open: bool,
    /// Reads so far, with or without a reply.
    reads: u64,
}

impl IdentityWatch {
    pub(super) fn holding(Agreement { setting, read_at }: Agreement) -> IdentityWatch {
        let last_read = LastRead {
            at: Some(read_at),
            valid_for: setting.valid_for,
            is_active: true,
            is_open: true,
            reads: 0,
        };
        IdentityWatch {
            started_with: Some(setting),
            last_read: Mutex::new(last_read),
            reading: tokio::sync::Mutex::default(),
        }
    }

    /// Returns whether this process may act on its identity now. If the last read is too old it reads once more, within
    /// `patience`; that read is no older than this call.
    pub(crate) async fn confirm(&self, store: &dyn Store, patience: Duration) -> bool {
        self.started_with.is_none() || self.confirm_that(store, patience, |last| last.is_active).await
    }

    /// Returns whether no copy keeps the store closed, as [`IdentityWatch::confirm`] does for the identity.
    pub(crate) async fn confirm_open(&self, store: &dyn Store, patience: Duration) -> bool {
        self.confirm_that(store, patience, |last| last.is_open).await
    }

    async fn confirm_that(
        &self,
        store: &dyn Store,
        patience: Duration,
        is_so: impl Fn(LastRead) -> bool,
    ) -> bool {
        let last = self.last_read();
        let is_read_by_task = self.started_with.is_some();
        if last.is_fresh() || (is_read_by_task && !is_so(last)) {
            // A retired identity is read again by the task only, not once per request.
            return is_so(last);
        }
        let _reading = self.reading.lock().await;
        // Another caller may have read meanwhile.
        if self.last_read().reads == last.reads {
            self.read(store, patience).await;
        }
        let read = self.last_read();
        // A store without an identity can't be copied yet: each read of it counts once.
        is_so(read) && (read.is_fresh() || (read.valid_for.is_zero() && read.at > last.at))
    }

    /// Returns whether the last read showed the identity as active, however old that read is.
    pub(crate) fn is_active(&self) -> bool {
        self.started_with.is_none() || self.last_read().is_active
    }

    /// Returns whether the last read showed that a copy keeps the store closed.
    fn shows_closed(&self) -> bool {
        let last = self.last_read();
        last.at.is_some() && !last.is_open
    }

    /// Returns how long a client should wait before it retries: the next read may show the identity as active.
    pub(crate) fn retry_in(&self) -> Duration {
        self.read_every().unwrap_or_default()
    }

    /// Returns the identities before this one whose ids are still looked up, newest first.
    #[cfg(feature = "http")]
    pub(crate) fn previous(&self) -> &[crate::identity::PreviousIdentity] {
        self.started_with.as_ref().map_or(&[], |setting| &setting.previous)
    }

    /// Returns the identity that the process started with.
    pub(crate) fn setting(&self) -> Option<&IdentitySetting> {
        self.started_with.as_ref()
    }

    fn last_read(&self) -> LastRead {
        *self.last_read.lock()
    }

    /// Returns the pause between reads. Three reads fit into the time that one is valid for, so one lost read refuses no
    /// request.
    fn read_every(&self) -> Option<Duration> {
        self.started_with.as_ref().map(|setting| setting.valid_for / 3)
    }

    async fn read(&self, store: &dyn Store, patience: Duration) {
        let sent_at = Instant::now();
        let read = tokio::time::timeout(patience, store.setting(SETTING)).await;
        let mut last = self.last_read.lock();
        last.reads += 1;
        // Without a reply the last read counts, until it is too old.
        let Ok(Ok(text)) = read else { return };
        let stored = text.as_deref().map(IdentitySetting::parse);
        let is_open = match &stored {
            None => true,
            Some(Ok(setting)) => setting.check_open().is_ok(),
            // A newer program closed it, or did something else that this one does not know.
            Some(Err(_)) => false,
        };
        let setting = stored.and_then(Result::ok);
        let is_active = is_open && setting.as_ref().is_some_and(|setting| self.is_ours(setting));
        match (last.is_active, is_active) {
            (true, false) => tracing::warn!(
                "store identity retired: no keys are reserved here until a restart with the new configuration"
            ),
            (false, true) if self.started_with.is_some() => {
                tracing::info!("store identity is active again");
            }
            _ => {}
        }
        last.valid_for = setting.as_ref().map_or(Duration::ZERO, |setting| setting.valid_for);
        if let Some(started_with) = &self.started_with {
            last.valid_for = started_with.valid_for;
        }
        (last.at, last.is_active, last.is_open) = (Some(sent_at), is_active, is_open);
    }

    /// Returns whether the stored setting shows the identity that this process started with as active. The generation
    /// decides, not the rules: after a change there and back the rules are the same, but this process would not look up the
    /// ids of records from the time between.
    fn is_ours(&self, setting: &IdentitySetting) -> bool {
        self.started_with.as_ref().is_some_and(|started_with| {
            setting.phase == IdentityPhase::Active && setting.generation == started_with.generation
        })
    }
}

impl LastRead {
    fn is_fresh(self) -> bool {
        self.at.is_some_and(|at| at.elapsed() < self.valid_for)
    }
}

impl Engine {
    /// Returns whether this process may act on its identity now.
    pub(crate) async fn confirm_identity(&self) -> bool {
        self.identity.confirm(&*self.store, self.begin_timeout).await
    }

    /// Returns whether no copy keeps the store closed: what happens in it or outside because of it now, happens in the one store
    /// that is open.
    pub(crate) async fn confirm_open(&self) -> bool {
        self.identity.confirm_open(&*self.store, self.begin_timeout).await
    }

    /// Returns whether a copy keeps the store closed, as far as this process can know: not while the store does not answer.
    pub(crate) async fn is_closed(&self) -> bool {
        !self.confirm_open().await && self.identity.shows_closed()
    }

    /// Keeps the secret of this process registered, within `patience`. If that fails, the next round tries again.
    async fn restore_secret(&self, patience: Duration) {
        let restore = registered_secrets::restore(&*self.store, self.secrets.newest_id());
        if let Ok(Err(error)) = tokio::time::timeout(patience, restore).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "the registered secrets were not read");
        }
    }

    /// Refuses a request because this process may not act on its identity.
    pub(crate) fn without_identity(&self) -> UnavailableError {
        UnavailableError::refused_early(self.identity.retry_in().max(RETRY_AFTER_MIN))
    }
}

/// Reads the identity from time to time, for as long as the engine lives. A process for upkeep only reads it when it needs to.
pub(super) async fn keep_reading(engine: Weak<Engine>) {
    loop {
        let Some(pause) = engine.upgrade().and_then(|live| live.identity.read_every()) else { return };
        tokio::time::sleep(pause).await;
        let Some(live) = engine.upgrade() else { return };
        {
            let _reading = live.identity.reading.lock().await;
            live.identity.read(&*live.store, pause).await;
        }
        // Not on a store that is closed: a copy compares its settings.
        if live.identity.is_active() {
            live.restore_secret(pause).await;
        }
    }
}
