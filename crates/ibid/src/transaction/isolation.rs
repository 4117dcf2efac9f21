//! Transactions at a stricter isolation level than the server's default. This file must not depend on a driver.

use ibid_core::sql::{Database, Dialect, SqlError, SqlTx, Statement};

/// A [`Database`] whose transactions run at the chosen isolation level.
#[derive(Clone, Debug)]
pub struct Isolated<D> {
    inner: D,
    level: Isolation,
}

/// Isolation level of a PostgreSQL transaction. SQLite has only the strictest level and ignores this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Each statement sees the commits before it.
    ReadCommitted,
    /// The whole transaction sees the commits before its first statement.
    RepeatableRead,
    /// Transactions behave as if they ran one after the other.
    Serializable,
}

impl<D> Isolated<D> {
    /// Wraps `inner` so that its transactions run at this level.
    pub fn new(inner: D, level: Isolation) -> Isolated<D> {
        Isolated { inner, level }
    }
}

impl<D: Database> Database for Isolated<D> {
    type Tx = D::Tx;

    async fn begin(&self) -> Result<D::Tx, SqlError> {
        let mut tx = self.inner.begin().await?;
        if tx.dialect() == Dialect::Postgres {
            tx.execute(self.level.statement(), &[]).await?;
        }
        Ok(tx)
    }
}

impl Isolation {
    fn statement(self) -> &'static Statement {
        match self {
            Isolation::ReadCommitted => &READ_COMMITTED,
            Isolation::RepeatableRead => &REPEATABLE_READ,
            Isolation::Serializable => &SERIALIZABLE,
        }
    }
}

static READ_COMMITTED: Statement =
    Statement { text: "set transaction isolation level read committed", columns: &[] };
static REPEATABLE_READ: Statement =
    Statement { text: "set transaction isolation level repeatable read", columns: &[] };
static SERIALIZABLE: Statement =
    Statement { text: "set transaction isolation level serializable", columns: &[] };
