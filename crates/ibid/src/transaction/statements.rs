//! Statements that run in a caller's transaction: those of records are in `record_sql`.

use ibid_core::effect::{NewEffect, downstream_key};
use ibid_core::machine::EffectState;
use ibid_core::record::{Nonce, Record};
use ibid_core::sql::Type::I64;
use ibid_core::sql::{Param, SqlError, SqlTx};
use ibid_core::time::Timestamp;

pub(crate) use crate::record_sql::{
    DialectSql, ReadRecord as Locked, WriteOptions, add_history as note, apply, in_dialect as of, instant,
    interval, lock, mark, nonce, number, read,
};
pub(crate) use ibid_core::row::micros;

/// A nonce with the same bits in the type that databases have.
pub(crate) fn bits(nonce: Nonce) -> Param<'static> {
    Param::I64(ibid_core::row::bits(nonce))
}

/// Puts an Effect of `record` into the outbox; whether there was none of that name yet.
pub(crate) async fn enqueue(
    tx: &mut dyn SqlTx,
    record: &Record,
    effect: &NewEffect,
    nonce: Nonce,
    now: Option<Timestamp>,
) -> Result<bool, SqlError> {
    let statement = of(tx, &EFFECT_ADD);
    let key = downstream_key(&record.id, record.birth, &effect.name);
    let rules = effect.rules.to_bytes();
    let params = [
        Param::Bytes(record.id.as_bytes()),
        instant(now),
        bits(record.birth),
        Param::Text(&effect.name),
        bits(nonce),
        Param::Text(&effect.kind),
        Param::I64(EffectState::ENQUEUED as i64),
        Param::Bool(true),
        Param::I64(micros(effect.delay)),
        Param::I64(micros(effect.rules.lease())),
        Param::Text(&key),
        Param::maybe_text(effect.aggregate.as_deref()),
        Param::Bytes(&rules),
        Param::Bool(effect.owes),
        Param::Text(record.identity.tenant.as_str()),
        Param::maybe_text(effect.trace.as_deref()),
        Param::Bytes(&effect.payload),
    ];
    Ok(!tx.query(statement, &params).await?.is_empty())
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

static EFFECT_ADD: DialectSql = both!("effect_add.sql", &[I64]);
