//! Names of `record_sql` for the modules that run statements in a caller's transaction.

use ibid_core::record::Nonce;
use ibid_core::sql::Param;

pub(crate) use crate::record_sql::{
    DialectSql, ReadRecord as Locked, WriteOptions, add_history as note, apply, in_dialect as of, instant,
    interval, lock, mark, nonce, number, read,
};
pub(crate) use ibid_core::row::micros;

/// A nonce with the same bits in the type that databases have.
pub(crate) fn bits(nonce: Nonce) -> Param<'static> {
    Param::I64(ibid_core::row::bits(nonce))
}

/// The same file of each dialect.
macro_rules! both {
    ($file:literal, $columns:expr) => {
        $crate::transaction::statements::DialectSql::new(
            include_str!(concat!("sql/postgres/", $file)),
            include_str!(concat!("sql/sqlite/", $file)),
            $columns,
        )
    };
}

pub(crate) use both;
