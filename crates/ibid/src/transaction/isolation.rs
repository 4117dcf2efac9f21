//! Transactions at a stricter isolation level than the server's default. This file must not depend on a driver.

use ibid_core::sql::{Database, Dialect, SqlError, SqlTx, Statement};

/// A [`Database`] whose transactions run at the chosen isolation level.
#[derive(Clone, Debug)]
pub struct IsolatedDatabase<D> {
    inner: D,
    level: Isolation,
}

/// Isolation level of a transaction on PostgreSQL or MySQL. SQLite has only the strictest level and ignores this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isolation {
    /// Each statement sees the commits before it.
    ReadCommitted,
    /// The whole transaction sees the commits before its first statement.
    RepeatableRead,
    /// Transactions behave as if they ran one after the other.
    Serializable,
}

impl<D> IsolatedDatabase<D> {
    /// Wraps `inner` so that its transactions run at this level.
    pub fn new(inner: D, level: Isolation) -> IsolatedDatabase<D> {
        IsolatedDatabase { inner, level }
    }
}

impl<D: Database> Database for IsolatedDatabase<D> {
    type Tx = D::Tx;

    async fn begin(&self) -> Result<D::Tx, SqlError> {
        let mut tx = self.inner.begin().await?;
        if let Some(statement) = self.level.statement(tx.dialect()) {
            tx.execute(statement, &[]).await?;
        }
        Ok(tx)
    }
}

impl Isolation {
    fn statement(self, dialect: Dialect) -> Option<&'static Statement> {
        match (dialect, self) {
            (Dialect::Sqlite, _) => None,
            (Dialect::Postgres, Isolation::ReadCommitted) => Some(&READ_COMMITTED),
            (Dialect::Postgres, Isolation::RepeatableRead) => Some(&REPEATABLE_READ),
            (Dialect::Postgres, Isolation::Serializable) => Some(&SERIALIZABLE),
            (Dialect::Mysql, Isolation::ReadCommitted) => Some(&READ_COMMITTED_ON_MYSQL),
            (Dialect::Mysql, Isolation::RepeatableRead) => Some(&REPEATABLE_READ_ON_MYSQL),
            (Dialect::Mysql, Isolation::Serializable) => Some(&SERIALIZABLE_ON_MYSQL),
        }
    }
}

/// Begins an unused MySQL transaction again under READ COMMITTED: above it, a statement that looks for rows also locks the gaps
/// between them, and makes inserts of others wait.
pub(crate) async fn lock_rows_only(tx: &mut dyn SqlTx) -> Result<(), SqlError> {
    if tx.dialect() == Dialect::Mysql {
        tx.execute(&READ_COMMITTED_ON_MYSQL, &[]).await?;
    }
    Ok(())
}

static READ_COMMITTED: Statement = statement("set transaction isolation level read committed");
static REPEATABLE_READ: Statement = statement("set transaction isolation level repeatable read");
static SERIALIZABLE: Statement = statement("set transaction isolation level serializable");

// MySQL sets the level of the next transaction, so the one that has just begun is begun again.
static READ_COMMITTED_ON_MYSQL: Statement =
    statement("rollback; set transaction isolation level read committed; start transaction");
static REPEATABLE_READ_ON_MYSQL: Statement =
    statement("rollback; set transaction isolation level repeatable read; start transaction");
static SERIALIZABLE_ON_MYSQL: Statement =
    statement("rollback; set transaction isolation level serializable; start transaction");

const fn statement(text: &'static str) -> Statement {
    Statement { text, columns: &[] }
}
