//! A real database whose commits lose their replies, as a network would.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use ibid::transaction::{Database, OwnedTx, SqlError, SqlFault, SqlTx};
use ibid_core::sql::{Dialect, Param, SqlRow, Statement};
use ibid_core::store::BoxFuture;

/// Outcome of a commit and of its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Comes,
    /// It was committed, and the reply is lost.
    Lost,
    /// It was not committed, and the caller gets no reply.
    NeverSent,
    /// It is committed once there is a permit, and the reply is lost.
    #[cfg(all(feature = "postgres", feature = "sqlx-postgres"))]
    Late(&'static tokio::sync::Semaphore),
}

/// A database whose commits end as the replies say, in turn; later ones succeed.
pub(crate) struct Lossy<D> {
    inner: D,
    replies: Arc<Mutex<VecDeque<Reply>>>,
}

impl<D> Lossy<D> {
    pub(crate) fn new(inner: D, replies: &[Reply]) -> Lossy<D> {
        Lossy { inner, replies: Arc::new(Mutex::new(replies.iter().copied().collect())) }
    }
}

impl<D: Database<Tx: 'static>> Database for Lossy<D> {
    type Tx = LossyTx<D::Tx>;

    async fn begin(&self) -> Result<LossyTx<D::Tx>, SqlError> {
        Ok(LossyTx { inner: self.inner.begin().await?, replies: self.replies.clone() })
    }
}

pub(crate) struct LossyTx<T> {
    inner: T,
    replies: Arc<Mutex<VecDeque<Reply>>>,
}

impl<T: SqlTx> SqlTx for LossyTx<T> {
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<(), SqlError>> {
        self.inner.execute(statement, params)
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
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
            #[cfg(all(feature = "postgres", feature = "sqlx-postgres"))]
            Reply::Late(permits) => drop(tokio::spawn(async move {
                permits.acquire().await.unwrap().forget();
                self.inner.commit().await.unwrap();
            })),
        }
        Err(SqlError::new(SqlFault::Lost, "the connection was lost"))
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
