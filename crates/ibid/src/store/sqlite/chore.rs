//! A small piece of work that shares the transaction of the next changes: a setting, evidence, a step of the reaper.

use ibid_core::store::StoreError;
use ibid_core::time::Timestamp;
use rusqlite::Connection;
use tokio::sync::oneshot::Sender;

/// The transaction that a chore runs in.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChoreContext {
    pub(super) now: Timestamp,
    /// Number of changes and of other chores that share the transaction, and wait for a step.
    pub(super) changes: u32,
}

/// The kind of a chore. Each has its own lane, so that none waits for a flood of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChoreKind {
    /// A setting or a policy: one row. A node that cannot write its settings is not ready and does no chores, so these go
    /// first.
    Setting,
    /// Evidence: one row, or some hundred marks. As many come as webhooks do.
    Evidence,
    /// A step of the reaper or of the ordering: milliseconds, and several statements that are only right together. A step
    /// that a power cut takes back is repeated, so it is not flushed; whatever is committed after it makes it durable.
    Step,
}

/// Work for the writer. It runs after the changes of its group, and its caller gets the reply after the commit.
pub(super) trait Chore: Send {
    fn kind(&self) -> ChoreKind;

    /// Does the work inside the open transaction. It is called again if that transaction is rolled back and repeated.
    fn run(&mut self, connection: &Connection, context: ChoreContext) -> rusqlite::Result<()>;

    /// Tells the caller that the work is committed.
    fn done(self: Box<Self>);

    /// Tells the caller that the work failed.
    fn fail(self: Box<Self>, error: StoreError);
}

/// A closure as a [`Chore`].
pub(super) struct ChoreJob<T, W> {
    pub(super) kind: ChoreKind,
    pub(super) work: W,
    pub(super) outcome: Option<T>,
    pub(super) reply: Sender<Result<T, StoreError>>,
}

impl<T, W> Chore for ChoreJob<T, W>
where
    T: Send,
    W: Fn(&Connection, ChoreContext) -> rusqlite::Result<T> + Send,
{
    fn kind(&self) -> ChoreKind {
        self.kind
    }

    fn run(&mut self, connection: &Connection, context: ChoreContext) -> rusqlite::Result<()> {
        self.outcome = Some((self.work)(connection, context)?);
        Ok(())
    }

    fn done(self: Box<Self>) {
        // A caller that left no longer needs the outcome; here and below.
        if let Some(outcome) = self.outcome {
            drop(self.reply.send(Ok(outcome)));
        }
    }

    fn fail(self: Box<Self>, error: StoreError) {
        drop(self.reply.send(Err(error)));
    }
}
