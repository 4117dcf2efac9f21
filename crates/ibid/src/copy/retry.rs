//! Repeats a step of a copy while a store fails for a moment.
//!
//! From the close of the source on, a copy that ends early is an outage until an operator runs it again. Every step can be
//! repeated: a read changes nothing, a setting that has the new value already counts as won, and a batch replaces what an earlier try
//! of it left.

use std::time::Duration;

use super::CopyError;
use crate::backoff::Backoff;

/// Runs `step` until it succeeds or fails permanently, [`TRIES_MAX`] times at most.
pub(super) async fn retry<T, E: Into<CopyError>>(
    mut step: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, CopyError> {
    let mut pauses = Backoff::new(PAUSE_MIN, PAUSE_MAX);
    for _ in 1..TRIES_MAX {
        match step().await.map_err(Into::into) {
            Err(CopyError::Store(error)) if error.is_transient() => {
                let pause = pauses.next();
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a store failed, the copy tries again in {pause:?}"
                );
                tokio::time::sleep(pause).await;
            }
            ended => return ended,
        }
    }
    step().await.map_err(Into::into)
}

/// Tries of one step. With the pauses they take about a minute, in which a server restarts or another one takes over.
const TRIES_MAX: u32 = 13;

const PAUSE_MIN: Duration = Duration::from_millis(100);

const PAUSE_MAX: Duration = Duration::from_secs(10);
