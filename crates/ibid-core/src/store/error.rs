//! The error of every store verb: may the caller repeat it, and may it hide a write?

/// A store that could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[error("could not {op} in the {store} store")]
pub struct StoreError {
    op: &'static str,
    store: &'static str,
    transient: bool,
    unwritten: bool,
    unsent: bool,
    contended: bool,
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
        StoreError { transient: true, ..StoreError::lasting(store, op, source) }
    }

    /// Creates a failure that repetition does not mend: this one change can't be stored, or the store is not ours.
    pub fn lasting(
        store: &'static str,
        op: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        let source = source.into();
        StoreError { op, store, transient: false, unwritten: false, unsent: false, contended: false, source }
    }

    /// Creates the failure of a change whose record another transaction has locked. Nothing was written, the same call may
    /// succeed later, and it says nothing about the store's health.
    pub fn row_locked(
        store: &'static str,
        op: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        StoreError { contended: true, ..StoreError::transient(store, op, source).unwritten() }
    }

    /// Adds proof that nothing was written.
    #[must_use]
    pub fn unwritten(self) -> Self {
        StoreError { unwritten: true, ..self }
    }

    /// Adds that the change was refused at once. The reason says nothing about the store's health, and nothing was written.
    #[must_use]
    pub fn unsent(self) -> Self {
        StoreError { unsent: true, ..self.unwritten() }
    }

    /// Creates the error of a change that was never sent, because too many wait in the store's own queue.
    pub fn overloaded(store: &'static str, op: &'static str) -> Self {
        StoreError::no_room(store, op, "too many changes are waiting")
    }

    /// Creates the error of a begin that the store refuses at once, although it answers other calls: its server is full, or
    /// became less durable than the operator accepts.
    pub fn no_room(
        store: &'static str,
        op: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        StoreError::transient(store, op, source).unsent()
    }

    /// Returns whether the change was refused at once: too many wait in the store's own queue, the store takes no begins now,
    /// or the clock of a node is off. The reason says nothing about the store's health, and nothing was written.
    pub fn is_unsent(&self) -> bool {
        self.unsent
    }

    /// Returns whether another transaction has locked the record.
    pub fn is_contended(&self) -> bool {
        self.contended
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
