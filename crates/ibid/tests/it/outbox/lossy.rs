//! A real database whose commits lose their replies, as a network would.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use ibid::transaction::rusqlite::{Rusqlite, RusqliteTx};
use ibid::transaction::{Database, Fault, OwnedTx, SqlError, SqlTx};
use ibid_core::sql::{Dialect, Param, Row, Statement};
use ibid_core::store::Pending;

/// What becomes of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Comes,
    /// It was committed, and nobody says so.
    Lost,
    /// It was not committed, and nobody says so.
    NeverSent,
}

/// Commits go as the replies say, in turn; then all is well.
pub(super) struct Lossy {
    inner: Rusqlite,
    replies: Arc<Mutex<VecDeque<Reply>>>,
}

impl Lossy {
    pub(super) fn new(inner: Rusqlite, replies: &[Reply]) -> Lossy {
        Lossy { inner, replies: Arc::new(Mutex::new(replies.iter().copied().collect())) }
    }
}

impl Database for Lossy {
    type Tx = LossyTx;

    async fn begin(&self) -> Result<LossyTx, SqlError> {
        Ok(LossyTx { inner: self.inner.begin().await?, replies: self.replies.clone() })
    }
}

pub(super) struct LossyTx {
    inner: RusqliteTx<'static>,
    replies: Arc<Mutex<VecDeque<Reply>>>,
}

impl SqlTx for LossyTx {
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
        SqlTx::query(&mut self.inner, statement, params)
    }
}

impl OwnedTx for LossyTx {
    async fn commit(self) -> Result<(), SqlError> {
        let reply = self.replies.lock().unwrap().pop_front().unwrap_or(Reply::Comes);
        match reply {
            Reply::Comes => return self.inner.commit().await,
            Reply::Lost => self.inner.commit().await?,
            Reply::NeverSent => self.inner.rollback().await?,
        }
        Err(SqlError::new(Fault::Lost, "the connection was lost"))
    }

    async fn rollback(self) -> Result<(), SqlError> {
        self.inner.rollback().await
    }
}

impl Deref for LossyTx {
    type Target = rusqlite::Connection;

    fn deref(&self) -> &rusqlite::Connection {
        &self.inner
    }
}
