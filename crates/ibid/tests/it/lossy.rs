//! A real database whose commits lose their replies, as a network would.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use ibid::transaction::{Database, Fault, OwnedTx, SqlError, SqlTx};
use ibid_core::sql::{Dialect, Param, Row, Statement};
use ibid_core::store::Pending;
use tokio::sync::Semaphore;

/// What becomes of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Comes,
    /// It was committed, and nobody says so.
    Lost,
    /// It was not committed, and nobody says so.
    NeverSent,
    /// It is committed once the test says so, and nobody is told.
    Late,
}

/// Commits go as the replies say, in turn; then all is well.
pub(crate) struct Lossy<D> {
    inner: D,
    replies: Arc<Mutex<VecDeque<Reply>>>,
    late: Arc<Semaphore>,
}

impl<D> Lossy<D> {
    pub(crate) fn new(inner: D, replies: &[Reply]) -> Lossy<D> {
        let replies = Arc::new(Mutex::new(replies.iter().copied().collect()));
        Lossy { inner, replies, late: Arc::new(Semaphore::new(0)) }
    }

    /// Lets as many late commits come as it is given permits.
    #[cfg(all(feature = "postgres", feature = "sqlx-postgres"))]
    pub(crate) fn late(&self) -> Arc<Semaphore> {
        self.late.clone()
    }
}

impl<D: Database<Tx: 'static>> Database for Lossy<D> {
    type Tx = LossyTx<D::Tx>;

    async fn begin(&self) -> Result<LossyTx<D::Tx>, SqlError> {
        let (replies, late) = (self.replies.clone(), self.late.clone());
        Ok(LossyTx { inner: self.inner.begin().await?, replies, late })
    }
}

pub(crate) struct LossyTx<T> {
    inner: T,
    replies: Arc<Mutex<VecDeque<Reply>>>,
    late: Arc<Semaphore>,
}

impl<T: SqlTx> SqlTx for LossyTx<T> {
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> Pending<'a, Result<u64, SqlError>> {
        self.inner.execute(statement, params)
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> Pending<'a, Result<Vec<Row>, SqlError>> {
        self.inner.query(statement, params)
    }
}

impl<T: OwnedTx + 'static> OwnedTx for LossyTx<T> {
    async fn commit(self) -> Result<(), SqlError> {
        let reply = self.replies.lock().unwrap().pop_front().unwrap_or(Reply::Comes);
        match reply {
            Reply::Comes => return self.inner.commit().await,
            Reply::Lost => self.inner.commit().await?,
            Reply::NeverSent => self.inner.rollback().await?,
            Reply::Late => drop(tokio::spawn(async move {
                self.late.acquire().await.unwrap().forget();
                self.inner.commit().await.unwrap();
            })),
        }
        Err(SqlError::new(Fault::Lost, "the connection was lost"))
    }

    async fn rollback(self) -> Result<(), SqlError> {
        self.inner.rollback().await
    }
}

impl<T: Deref> Deref for LossyTx<T> {
    type Target = T::Target;

    fn deref(&self) -> &T::Target {
        &self.inner
    }
}
