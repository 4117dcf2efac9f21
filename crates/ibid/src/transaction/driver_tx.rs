//! Access to the driver's own connection inside a transaction.

use ibid_core::sql::OwnedTx;

/// A transaction of one of the adapters, with the connection that the driver's statements run on.
pub trait DriverTx: OwnedTx {
    /// A reference to the driver's connection, exclusive where the driver needs that.
    type Conn<'a>
    where
        Self: 'a;

    /// The connection. Don't commit or roll back on it: ibid does.
    fn conn(&mut self) -> Self::Conn<'_>;
}
