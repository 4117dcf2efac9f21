//! Transactions at a stricter isolation level than the server's default. It must not know any driver.

use ibid_core::sql::{Database, Dialect, SqlError, SqlTx, Statement};

/// A [`Database`] whose transactions run at an isolation level of the caller's choice.
#[derive(Clone, Debug)]
pub struct Isolated<D> {
    inner: D,
    level: Isolation,
}

/// How much a transaction sees of others. SQLite knows one level, the strictest, and ignores this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Each statement sees what was committed before it.
    ReadCommitted,
    /// The whole transaction sees what was committed before its first statement.
    RepeatableRead,
    /// As if transactions ran one after the other.
    Serializable,
}

impl<D> Isolated<D> {
    /// Transactions of `inner` at this level.
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
