//! Admission control for guarded requests, before their bodies are read.

use std::any::Any;
use std::sync::Arc;

use http::request::Parts;

/// Decides whether a guarded request is admitted. Without one, every request is.
///
/// The layer calls it after it has read key and tenant and before it reads the body. A request that is refused gets 503
/// `overloaded`, and nothing is reserved.
pub trait Admission: Send + Sync + 'static {
    /// Admits a request, and returns the resources that it holds.
    ///
    /// # Errors
    ///
    /// Fails with [`OverCapacityError`] if there is no room for it.
    fn admit(&self, head: &Parts) -> Result<AdmissionPermit, OverCapacityError>;

    /// Returns whether a stored response of this size may be sent now. If not, the retry gets 503 `overloaded`.
    fn has_room_for_replay(&self, bytes: u64) -> bool {
        let _ = bytes;
        true
    }
}

/// The resources that an admitted request holds.
pub struct AdmissionPermit {
    /// Dropped when the client has its response or has left.
    pub client: Box<dyn Any + Send + Sync>,
    /// Dropped when the client has its response or has left, and the run has ended. The run continues without the client.
    pub body: Arc<dyn BodyBytes>,
}

impl std::fmt::Debug for AdmissionPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdmissionPermit").finish_non_exhaustive()
    }
}

/// The bytes of a request's body in memory.
pub trait BodyBytes: Send + Sync + 'static {
    /// Counts bytes that have arrived.
    ///
    /// # Errors
    ///
    /// Fails with [`OverCapacityError`] if there is no room for them.
    fn grow(&self, bytes: u64) -> Result<(), OverCapacityError>;
}

/// There is no room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for another request")]
pub struct OverCapacityError;
