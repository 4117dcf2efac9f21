//! Tells whether this process can serve: the store takes writes, and the breaker is closed.

use std::time::Duration;

use bytes::Bytes;
use ibid_core::store::StoreError;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::Engine;
use crate::random::random;

/// The last write that was made to learn whether the store takes writes.
#[derive(Default)]
pub(crate) struct Readiness {
    /// Instant of the last success. Locked while a write is in flight, so that checks at the same time share it.
    written_at: Mutex<Option<Instant>>,
}

/// The reason why a process is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReadyError {
    /// The store did not answer lately, and new keys are refused.
    #[error("the circuit breaker is open: the store did not answer")]
    BreakerOpen,
    /// The store did not take a write in time. It may still answer reads.
    #[error("the store does not take writes")]
    NotWritable,
}

impl Engine {
    /// Returns whether begins have a chance now.
    ///
    /// A reader alone proves little: on a full disk, or on a standby, each begin would be refused all the same. So the check
    /// writes a setting, at most once in [`WRITE_EVERY`].
    ///
    /// Once the pause of an open breaker is over, the check probes the store for it. Otherwise a process that gets no requests
    /// because it is not ready would never become ready.
    pub(crate) async fn check_ready(&self, within: Duration) -> Result<(), NotReadyError> {
        let pass = self.breaker.enter(Instant::now()).map_err(|_| NotReadyError::BreakerOpen)?;
        let is_writable = matches!(timeout(within, self.write_lately(pass.is_probe())).await, Ok(Ok(())));
        match (is_writable, pass.is_probe()) {
            (true, true) => pass.report_reply(),
            (false, true) => pass.report_failure(Instant::now()),
            // While the breaker is closed, only begins count.
            (_, false) => pass.cancel(),
        }
        if is_writable { Ok(()) } else { Err(NotReadyError::NotWritable) }
    }

    /// Writes a setting, unless the last such write is recent. `again` writes in any case.
    async fn write_lately(&self, again: bool) -> Result<(), StoreError> {
        let mut written_at = self.readiness.written_at.lock().await;
        if !again && written_at.is_some_and(|at| at.elapsed() < WRITE_EVERY) {
            return Ok(());
        }
        *written_at = None;
        let before = self.store.setting(SETTING).await?;
        // A new value each time, so that no store can take it for no change. If another process wrote one meanwhile, the
        // store takes writes, too.
        let value = Bytes::copy_from_slice(&random::<8>());
        let _ = self.store.compare_and_set(SETTING, before, value).await?;
        *written_at = Some(Instant::now());
        Ok(())
    }
}

/// Name of the setting that is written.
const SETTING: &str = "ready";

/// Time that one write counts for. Orchestrators check every few seconds, and each write is a flush.
const WRITE_EVERY: Duration = Duration::from_secs(5);
