//! Effects of a copy, out of an SQL store and into one.

use bytes::Bytes;
use ibid_core::effect::{EffectChange, EffectFilter, StoredEffect};
use ibid_core::hex;
use ibid_core::row::{bits, micros};
use ibid_core::store::copy::{ClockShift, RowDigest, RowHash, SettingFence};
use ibid_core::store::{Cursor, Page, SqlStore, Store, StoreError};
use ibid_core::time::Timestamp;
use serde_json::{Value, json};

use super::{statements, store_tx};
use crate::random::nonce;
use crate::record_sql::copy::{check_fence, check_values, put};
use crate::record_sql::{DialectSql, WriteOptions, in_all_dialects, run};

/// Returns one page of effects, in the order of their numbers. A store without an outbox has none.
///
/// # Errors
///
/// An effect that this program cannot read is an error: it must not be left behind.
pub(crate) async fn export(
    store: &dyn Store,
    after: Option<Cursor>,
    limit: u32,
) -> Result<Page<StoredEffect>, StoreError> {
    let after = after.as_ref().and_then(Cursor::as_i64).unwrap_or(0);
    let filter = EffectFilter::default().with(|filter| (filter.after, filter.limit) = (after, limit));
    let page = store_tx::list(store, filter).await?.unwrap_or_default();
    if page.unreadable > 0 {
        let why = "an effect can't be read by this version of ibid";
        return Err(StoreError::lasting(store.facts().name, "copy effects", why));
    }
    Ok(Page { items: page.effects, next: page.next.map(Cursor::of_i64) })
}

/// Stores effects, each in place of the one with its number, in one transaction, if the fence holds. Numbers stay: they order the
/// effects of an aggregate.
pub(crate) async fn import(
    store: &dyn SqlStore,
    fence: SettingFence,
    effects: Vec<StoredEffect>,
) -> Result<(), StoreError> {
    run(store, move |tx| {
        Box::pin(async move {
            check_fence(tx, &fence).await?;
            for statement in [&CALLS, &EFFECTS, &TURNS] {
                put(tx, statement, effects.iter().map(columns)).await?;
            }
            Ok(())
        })
    })
    .await
}

/// Fails if the store can't hold one of these effects.
pub(crate) async fn check(store: &dyn SqlStore, effects: &[StoredEffect]) -> Result<(), StoreError> {
    check_values(store, effects.iter().map(columns).collect(), 0).await
}

/// Gives an effect whose claim has lapsed another version, and changes nothing else: a worker that comes back late can't record its
/// result, and the next one treats the call as lapsed.
pub(crate) async fn replace_claim(store: &dyn Store, effect: &StoredEffect) -> Result<(), StoreError> {
    let Some(sql) = store.sql() else { return Ok(()) };
    let (change, terms) = (EffectChange::touch(effect, nonce()), WriteOptions::of(sql));
    // If it has another version by now, a worker has just recorded its result.
    run(sql, move |tx| Box::pin(async move { statements::commit(tx, &change, terms).await })).await.map(drop)
}

/// Returns whether the effect is not done yet: a worker, evidence or an operator has to end it.
pub(crate) fn is_open(effect: &StoredEffect) -> bool {
    effect.done_at.is_none()
}

/// Returns the effect with all its instants moved to another clock.
pub(crate) fn shift(effect: StoredEffect, by: ClockShift) -> StoredEffect {
    let at = |at: Option<Timestamp>| at.map(|at| by.apply(at));
    StoredEffect {
        due_at: at(effect.due_at),
        created_at: by.apply(effect.created_at),
        called_at: at(effect.called_at),
        ended_at: at(effect.ended_at),
        done_at: at(effect.done_at),
        ..effect
    }
}

/// Returns a digest of everything in the effect's rows.
pub(crate) fn digest(effect: &StoredEffect) -> RowDigest {
    let mut hash = RowHash::default();
    hash.text(&columns(effect).to_string());
    hash.finish()
}

/// Returns the columns of both tables.
fn columns(effect: &StoredEffect) -> Value {
    let at = |at: Option<Timestamp>| at.map(Timestamp::as_micros);
    let bytes = |bytes: &Bytes| hex::encode(bytes);
    json!({
        "seq": effect.seq,
        "record": effect.record.to_string(),
        "birth": bits(effect.birth),
        "tenant": effect.tenant,
        "name": effect.name,
        "kind": effect.kind,
        "count": effect.version.count,
        "nonce": bits(effect.version.nonce),
        "state": effect.state.code(),
        "tries": effect.tries,
        "due_at": at(effect.due_at),
        "lease_us": micros(effect.rules.lease()),
        "created_at": effect.created_at.as_micros(),
        "called_at": at(effect.called_at),
        "ended_at": at(effect.ended_at),
        "done_at": at(effect.done_at),
        "aggregate": effect.aggregate,
        "downstream_key": effect.downstream_key,
        "rules": effect.rules.to_json(),
        "owes": u8::from(effect.owes),
        "letter": u8::from(effect.is_letter),
        "trace": effect.trace,
        "payload": bytes(&effect.payload),
        "result": effect.result.as_ref().map(bytes),
        "provider_id": effect.provider_id,
        "last_error": effect.last_error,
        "dead_letter": u8::from(effect.state.is_dead_letter(effect.due_at.is_some())),
    })
}

static CALLS: DialectSql = in_all_dialects!("sql/", "copy_calls.sql", &[]);
static EFFECTS: DialectSql = in_all_dialects!("sql/", "copy_effects.sql", &[]);
static TURNS: DialectSql = in_all_dialects!("sql/", "copy_turns.sql", &[]);
