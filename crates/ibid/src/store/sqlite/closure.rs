//! A caller's closure on the thread that writes, in its own transaction.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};

use ibid_core::store::StoreError;
use rusqlite::Connection;
use tokio::sync::oneshot::Sender;

use super::batch;
use super::error::{self, store_error};
use super::queue::Job;
use super::writer::Writer;
use super::{NAME, SqliteStore};

impl SqliteStore {
    /// Runs `work` on the thread that writes, inside a transaction that has the write lock: what `work` wrote is
    /// committed and on disk when this returns `Ok(Ok(_))`, and rolled back when `work` gave an error or panicked.
    ///
    /// Every other write to this store waits for `work`, renewals of leases included. Let it be short, milliseconds,
    /// and let it wait for nothing: no network, no lock, and above all not for this store. It runs although the caller
    /// has left. Foreign keys are enforced.
    ///
    /// `work` must leave the connection as it found it; it may open savepoints, but not end the transaction.
    ///
    /// # Errors
    ///
    /// Fails if the store could not do it. Only if [`StoreError::is_unwritten`] nothing was written: the queue was full, the
    /// write lock not to be had, `work` panicked, or COMMIT found a foreign key violated. Any other error, such as a
    /// disk that failed in the middle of COMMIT, means that what `work` wrote is perhaps there: look before running it
    /// again.
    ///
    /// ```
    /// use ibid::store::sqlite::{SqliteOptions, SqliteStore, rusqlite};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("shop.db");
    /// let store = SqliteStore::open(&path, SqliteOptions::default())?;
    /// let paid = store
    ///     .run(|connection| {
    ///         connection.execute_batch("create table payment (id integer primary key, cents integer not null)")?;
    ///         connection.execute("insert into payment (cents) values (?1)", [4200])?;
    ///         Ok::<_, rusqlite::Error>(connection.last_insert_rowid())
    ///     })
    ///     .await??;
    /// assert_eq!(paid, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: once the future was polled, the closure runs and commits, although its result is lost if the future
    /// is dropped.
    pub async fn run<T, E>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<Result<T, E>, StoreError>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let job = |reply: Sender<_>| {
            Job::Closure(Box::new(move |writer: &mut Writer| drop(reply.send(writer.run(work)))))
        };
        self.write(OP, job).await
    }
}

impl Writer {
    fn run<T, E>(
        &mut self,
        work: impl FnOnce(&mut Connection) -> Result<T, E>,
    ) -> Result<Result<T, E>, StoreError> {
        let started = self.set_flush(true).and_then(|()| self.begin());
        started.map_err(|error| store_error(OP, error).unwritten())?;
        // `begin` leaves a connection.
        let connection = self.connection.as_mut().expect("a transaction is open");
        // What a panic leaves behind is rolled back, and the connection closed.
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| work(connection)));
        let ended = connection.is_autocommit();
        match outcome {
            Err(panic) => {
                self.roll_back(true);
                let error = StoreError::lasting(NAME, OP, format!("the closure panicked: {}", text(&*panic)));
                // Unless it had ended the transaction itself before.
                Err(if ended { error } else { error.unwritten() })
            }
            Ok(Err(error)) => {
                // SQLite ended the transaction by itself: something worse than a statement failed.
                self.roll_back(ended);
                Ok(Err(error))
            }
            Ok(Ok(_)) if ended => {
                self.roll_back(true);
                Err(StoreError::lasting(NAME, OP, "the closure ended the transaction that it was run in"))
            }
            Ok(Ok(done)) => match batch::run(connection, "commit") {
                Ok(()) => Ok(Ok(done)),
                Err(error) => {
                    self.roll_back(error::spoils_connection(&error));
                    let refused = error::refused_commit(&error);
                    let error = store_error(OP, error);
                    Err(if refused { error.unwritten() } else { error })
                }
            },
        }
    }
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let message = panic.downcast_ref::<&str>().copied();
    message.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

const OP: &str = "run a closure";
