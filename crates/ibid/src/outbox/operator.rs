//! What an operator does about Effects: sees them, has a dead one made after all, or lets it go.

use std::sync::Arc;

use ibid_core::act::Act;
use ibid_core::change::{Happened as Line, History};
use ibid_core::effect::{EffectFilter, StoredEffect};
use ibid_core::machine::{EffectEvent, EffectState};
use ibid_core::sql::{SqlError, SqlTx};
use ibid_core::store::{Pending, SqlStore, Store, StoreError, Work};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::ending::{Answered, Happened, answer};
use super::handler::Settled;
use super::statements;
use crate::ibid::Ibid;
use crate::transaction::statements::{self as records, Terms};

/// Why an operator's wish was not done.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The store has no outbox.
    #[error("the store has no outbox: it is no SQL store")]
    NoSql,
    /// There is no such Effect.
    #[error("there is no effect {0}")]
    NoSuchEffect(i64),
    /// Only what is dead or unknown is a person's to decide.
    #[error("the effect is {}: only one that is dead or unknown can be retried or discarded", .0.name())]
    NotNow(EffectState),
    /// It is a letter to a person, and no call: it can only be discarded.
    #[error("the effect is no call of ours, so there is nothing to make: discard it once it is dealt with")]
    NothingToMake,
    /// It changed at this very moment: look again.
    #[error("the effect has just changed: look again")]
    Moved,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The Effects that fit, in the order of their places in the outbox.
pub async fn list(ibid: &Ibid, filter: EffectFilter) -> Result<Vec<StoredEffect>, OperatorError> {
    list_at(&**ibid.store(), filter).await
}

/// Has an Effect made that is dead or unknown: the operator's word that making it (again) is right. Its tries count anew.
pub async fn retry(ibid: &Ibid, seq: i64, act: &Act) -> Result<(), OperatorError> {
    retry_at(&**ibid.store(), Some(ibid), seq, act).await
}

/// Lets an Effect go that is dead or unknown: it will not be made. A Record that it owes its answer is `unknown`, and
/// others of its aggregate go on.
pub async fn discard(ibid: &Ibid, seq: i64, act: &Act) -> Result<(), OperatorError> {
    discard_at(&**ibid.store(), Some(ibid), seq, act).await
}

pub(crate) async fn list_at(
    store: &dyn Store,
    filter: EffectFilter,
) -> Result<Vec<StoredEffect>, OperatorError> {
    let store = sql(store)?;
    let now = store.now();
    work(store, move |tx| Box::pin(async move { statements::list(tx, &filter, now).await })).await
}

pub(crate) async fn load_at(store: &dyn Store, seq: i64) -> Result<StoredEffect, OperatorError> {
    let store = sql(store)?;
    let now = store.now();
    let found = work(store, move |tx| Box::pin(async move { statements::load(tx, seq, now).await })).await?;
    found.ok_or(OperatorError::NoSuchEffect(seq))
}

pub(crate) async fn retry_at(
    store: &dyn Store,
    ibid: Option<&Ibid>,
    seq: i64,
    act: &Act,
) -> Result<(), OperatorError> {
    decide(store, ibid, seq, EffectEvent::Retry, "retried", act).await
}

pub(crate) async fn discard_at(
    store: &dyn Store,
    ibid: Option<&Ibid>,
    seq: i64,
    act: &Act,
) -> Result<(), OperatorError> {
    decide(store, ibid, seq, EffectEvent::Discard, "discarded", act).await
}

async fn decide(
    store: &dyn Store,
    ibid: Option<&Ibid>,
    seq: i64,
    event: EffectEvent,
    what: &'static str,
    act: &Act,
) -> Result<(), OperatorError> {
    let store = sql(store)?;
    let (terms, sent_at, act) = (Terms::of(store), Instant::now(), act.clone());
    let done = work(store, move |tx| Box::pin(done(tx, seq, event, (what, act), terms))).await??;
    if let Some(ibid) = ibid {
        if let Some(answered) = done {
            answered.tell(ibid, sent_at);
        }
        // It is due, or what waited behind it in its aggregate may go now.
        ibid.outbox().enqueued.notify_waiters();
    }
    Ok(())
}

/// In one transaction: the Effect, the Record that waits for it, and a line of history.
async fn done(
    tx: &mut dyn SqlTx,
    seq: i64,
    event: EffectEvent,
    (what, act): (&'static str, Act),
    terms: Terms,
) -> Result<Result<Option<Answered>, OperatorError>, SqlError> {
    let now = terms.now;
    let Some(effect) = statements::load(tx, seq, now).await? else {
        return Ok(Err(OperatorError::NoSuchEffect(seq)));
    };
    let Some(change) =
        (Happened { event, made: None, why: None, provider_id: None, told: None }).change(&effect)
    else {
        return Ok(Err(match event {
            EffectEvent::Retry if effect.to_decide().is_letter() => OperatorError::NothingToMake,
            _ => OperatorError::NotNow(effect.state),
        }));
    };
    if statements::commit(tx, &change, terms).await?.is_none() {
        return Ok(Err(OperatorError::Moved));
    }
    let answered = match change.state {
        // It may still have been asked about, and its Record waited.
        EffectState::Discarded if effect.owes => {
            answer(tx, &effect, &Settled::Dead { why: format!("{what} {act}") }, terms).await?
        }
        _ => None,
    };
    let (name, before, after) = (&effect.name, effect.state.name(), change.state.name());
    let detail = format!("effect `{name}` {what}, {before} to {after}, {act}");
    records::note(tx, &effect.record, &History { what: Line::Operator, detail }, now).await?;
    Ok(Ok(answered))
}

/// Does a piece of work in a transaction of the store's own, and hands out what it found.
pub(super) async fn work<T: Send + 'static>(
    store: &dyn SqlStore,
    work: impl for<'a> FnOnce(&'a mut dyn SqlTx) -> Pending<'a, Result<T, SqlError>> + Send + 'static,
) -> Result<T, OperatorError> {
    let found = Arc::new(Mutex::new(None));
    let place = found.clone();
    let work: Work = Box::new(move |tx| {
        Box::pin(async move {
            let value = work(tx).await?;
            *place.lock() = Some(value);
            Ok(())
        })
    });
    store.work(work).await?;
    let value = found.lock().take();
    value.ok_or_else(|| StoreError::lasting("sql", "work", "the store did not do the work").into())
}

fn sql(store: &dyn Store) -> Result<&dyn SqlStore, OperatorError> {
    store.sql().ok_or(OperatorError::NoSql)
}
