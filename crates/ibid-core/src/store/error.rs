//! The error of every store verb: may the caller repeat it, and may it hide a write?

/// A store that could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[error("could not {op} in the {store} store")]
pub struct StoreError {
    op: &'static str,
    store: &'static str,
    transient: bool,
    unwritten: bool,
    overloaded: bool,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl StoreError {
    /// Creates a failure that may be gone when the same call is repeated.
    pub fn transient(
        store: &'static str,
        op: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        StoreError { op, store, transient: true, unwritten: false, overloaded: false, source: source.into() }
    }

    /// Creates a failure that repetition does not mend: this one change can't be stored, or the store is not ours.
    pub fn lasting(
        store: &'static str,
        op: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        StoreError { op, store, transient: false, unwritten: false, overloaded: false, source: source.into() }
    }

    /// Adds proof that nothing was written.
    #[must_use]
    pub fn unwritten(self) -> Self {
        StoreError { unwritten: true, ..self }
    }

    /// Creates the error of a change that was never sent, because too many wait in the store's own queue. It says nothing
    /// about the store's health.
    pub fn overloaded(store: &'static str, op: &'static str) -> Self {
        let error = StoreError::transient(store, op, "too many changes are waiting").unwritten();
        StoreError { overloaded: true, ..error }
    }

    /// Returns whether the change was never sent, because too many wait in the store's own queue.
    pub fn is_overloaded(&self) -> bool {
        self.overloaded
    }

    /// Returns whether the same call may succeed if repeated.
    pub fn is_transient(&self) -> bool {
        self.transient
    }

    /// Returns whether it is proven that nothing was written. Without the proof an error may hide a write that happened.
    pub fn is_unwritten(&self) -> bool {
        self.unwritten
    }
}
