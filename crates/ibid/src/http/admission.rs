//! Whether there is room for a guarded request, asked before its body is read.

use std::any::Any;
use std::sync::Arc;

use http::request::Parts;

/// Decides whether a guarded request is taken in. Without one, every request is.
///
/// It is asked after key and tenant are read and before the body is. A request that is refused gets 503 `overloaded`,
/// and nothing is reserved.
pub trait Admission: Send + Sync + 'static {
    /// Takes a request in.
    ///
    /// # Errors
    ///
    /// [`OverCapacity`] if there is no room for it.
    fn admit(&self, head: &Parts) -> Result<AdmissionPermit, OverCapacity>;

    /// Whether a stored answer of this size may be sent now. If not, its retry gets 503 `overloaded`.
    fn has_room_for_replay(&self, bytes: u64) -> bool {
        let _ = bytes;
        true
    }
}

/// The resources that an admitted request holds.
pub struct AdmissionPermit {
    /// Dropped when the client has its answer, or is gone.
    pub client: Box<dyn Any + Send + Sync>,
    /// Dropped when the client has its answer and the run is over, which may go on without the client.
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
    /// [`OverCapacity`] if there is no room for them.
    fn grow(&self, bytes: u64) -> Result<(), OverCapacity>;
}

/// There is no room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for another request")]
pub struct OverCapacity;
