//! A small piece of work that shares the transaction of the next changes: a step of the reaper, a setting, evidence.

use ibid_core::store::StoreError;
use ibid_core::time::Timestamp;
use rusqlite::Connection;
use tokio::sync::oneshot::Sender;

use super::failure::store_error;

/// The transaction that a chore runs in.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChoreContext {
    pub(super) now: Timestamp,
    /// Number of changes that share the transaction, and wait for the chore.
    pub(super) changes: u32,
}

/// Work for the writer. It runs once, after the changes of its group, and its caller gets the reply after the commit.
pub(super) trait Chore: Send {
    /// Returns whether the reply has to wait until the work is on disk. A step of the reaper need not: one that is lost is
    /// repeated, and whatever is committed after it makes it durable, too.
    fn must_last(&self) -> bool;

    /// Does the work inside the open transaction.
    fn run(&mut self, connection: &Connection, context: ChoreContext) -> rusqlite::Result<()>;

    /// Tells the caller that the work is committed.
    fn done(self: Box<Self>);

    /// Tells the caller that the work failed.
    fn failed(self: Box<Self>, error: StoreError);
}

/// A closure as a [`Chore`].
pub(super) struct ChoreJob<T, W> {
    pub(super) must_last: bool,
    pub(super) work: Option<W>,
    pub(super) outcome: Option<T>,
    pub(super) reply: Sender<Result<T, StoreError>>,
}

impl<T, W> Chore for ChoreJob<T, W>
where
    T: Send,
    W: FnOnce(&Connection, ChoreContext) -> rusqlite::Result<T> + Send,
{
    fn must_last(&self) -> bool {
        self.must_last
    }

    fn run(&mut self, connection: &Connection, context: ChoreContext) -> rusqlite::Result<()> {
        if let Some(work) = self.work.take() {
            self.outcome = Some(work(connection, context)?);
        }
        Ok(())
    }

    fn done(self: Box<Self>) {
        // A caller that left no longer needs the outcome; here and below.
        if let Some(outcome) = self.outcome {
            drop(self.reply.send(Ok(outcome)));
        }
    }

    fn failed(self: Box<Self>, error: StoreError) {
        drop(self.reply.send(Err(error)));
    }
}

/// Converts the failure of a chore that was rolled back.
pub(super) fn chore_error(op: &'static str, error: rusqlite::Error) -> StoreError {
    store_error(op, error).unwritten()
}
