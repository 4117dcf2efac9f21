//! Operator actions on effects: list them, retry a dead one, or discard it. Each is one transaction with its line of
//! history.

use ibid_core::change::{History, HistoryKind as Line};
use ibid_core::effect::{EffectFilter, StoredEffect};
use ibid_core::machine::EffectEvent;
use ibid_core::operator_action::OperatorAction;
use ibid_core::sql::{SqlError, SqlTx};
use ibid_core::store::{Cursor, RecordFilter, SqlStore};
use tokio::time::Instant;

use super::{Operator, OperatorError, RecordList};
use crate::outbox::SettledEffect;
use crate::outbox::record_result::{EffectResult, OwedResponse, settle_record};
use crate::outbox::{statements, store_tx};
use crate::record_sql::{self, WriteOptions};

/// Records and effects that an operator must look at.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetters {
    /// Records that are dead letters.
    pub records: RecordList,
    /// Effects that are dead, or unknown with no verification due. A store without an outbox has none.
    pub effects: Vec<StoredEffect>,
    /// The cursor of the next effects, if there are more.
    pub next_effect: Option<i64>,
}

/// Action of an operator on a dead or unknown effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EffectAction {
    /// Queue it again: the operator is responsible for making the call (again).
    Retry,
    /// Discard it: the call is never made.
    Discard,
}

impl EffectAction {
    /// Checks whether the machine allows this action on `effect`, and writes nothing.
    ///
    /// # Errors
    ///
    /// Fails with the error that [`Operator::retry`] or [`Operator::discard`] would return.
    pub fn check(self, effect: &StoredEffect) -> Result<(), OperatorError> {
        self.to_result().change(effect).map(drop).ok_or_else(|| self.refusal(effect))
    }

    fn to_result(self) -> EffectResult {
        let event = match self {
            EffectAction::Retry => EffectEvent::Retry,
            EffectAction::Discard => EffectEvent::Discard,
        };
        EffectResult { event, made: None, why: None, provider_id: None, evidence: None }
    }

    fn refusal(self, effect: &StoredEffect) -> OperatorError {
        match self {
            EffectAction::Retry if effect.to_decide().is_letter() => OperatorError::NothingToMake,
            _ => OperatorError::EffectNotNow(effect.state),
        }
    }

    /// Returns the word for this action in the history.
    fn name(self) -> &'static str {
        match self {
            EffectAction::Retry => "retried",
            EffectAction::Discard => "discarded",
        }
    }
}

impl Operator {
    /// Lists the effects that match `filter`, in outbox order, with the cursor of the next page if there is one. Effects that a
    /// newer version of ibid wrote, and this one cannot read, are logged and left out.
    ///
    /// # Errors
    ///
    /// Fails if the store has no outbox, or cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn effects(
        &self,
        filter: EffectFilter,
    ) -> Result<(Vec<StoredEffect>, Option<i64>), OperatorError> {
        let page = store_tx::list(&*self.store, filter).await?.ok_or(OperatorError::NoOutbox)?;
        Ok((page.effects, page.next))
    }

    /// Returns the effect with this number.
    ///
    /// # Errors
    ///
    /// Fails if there is none, or the store cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn effect(&self, seq: i64) -> Result<StoredEffect, OperatorError> {
        let store = self.outbox()?;
        let now = store.now();
        let load =
            store_tx::run(store, move |tx| Box::pin(async move { statements::load(tx, seq, now).await }));
        load.await?.ok_or(OperatorError::NoSuchEffect(seq))
    }

    /// Queues an effect that is dead or unknown: the operator is responsible for making the call (again). Its tries
    /// start from zero. Returns the effect as it is then.
    ///
    /// # Errors
    ///
    /// Fails if there is no such effect, if it is neither dead nor unknown, or if it has just changed.
    ///
    /// # Cancel safety
    ///
    /// A write that was already sent is not taken back. If the future is dropped, read the effect to see whether it was written;
    /// acting again is refused if it was.
    pub async fn retry(&self, seq: i64, act: &OperatorAction) -> Result<StoredEffect, OperatorError> {
        self.act_on_effect(seq, EffectAction::Retry, act).await
    }

    /// Discards an effect that is dead or unknown: its call will not be made. A record whose response it owes becomes
    /// `unknown`, and the next effect of its aggregate may run. Returns the effect as it is then.
    ///
    /// # Errors
    ///
    /// Fails if there is no such effect, if it is neither dead nor unknown, or if it has just changed.
    ///
    /// # Cancel safety
    ///
    /// A write that was already sent is not taken back. If the future is dropped, read the effect to see whether it was written;
    /// acting again is refused if it was.
    pub async fn discard(&self, seq: i64, act: &OperatorAction) -> Result<StoredEffect, OperatorError> {
        self.act_on_effect(seq, EffectAction::Discard, act).await
    }

    /// Lists all dead letters: up to `limit` records and up to `limit` effects, after the cursors.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn dead_letters(
        &self,
        records_after: Option<Cursor>,
        effects_after: i64,
        limit: u32,
    ) -> Result<DeadLetters, OperatorError> {
        let filter = RecordFilter::default().with(|filter| {
            filter.dead_letter = true;
            filter.after = records_after;
            filter.limit = limit;
        });
        let records = self.find(filter).await?;
        let dead = EffectFilter::default().with(|filter| {
            filter.dead_letter = true;
            filter.after = effects_after;
            filter.limit = limit;
        });
        let (effects, next_effect) = match self.effects(dead).await {
            Err(OperatorError::NoOutbox) => (Vec::new(), None),
            result => result?,
        };
        Ok(DeadLetters { records, effects, next_effect })
    }

    async fn act_on_effect(
        &self,
        seq: i64,
        action: EffectAction,
        act: &OperatorAction,
    ) -> Result<StoredEffect, OperatorError> {
        self.check_open().await?;
        let store = self.outbox()?;
        let (terms, sent_at, act) = (WriteOptions::of(store), Instant::now(), act.clone());
        let write = store_tx::run(store, move |tx| Box::pin(write(tx, seq, action, act, terms)));
        let owed = write.await??;
        self.check_still_open().await?;
        if let Some(ibid) = &self.ibid {
            if let Some(owed) = owed {
                owed.publish(ibid, sent_at);
            }
            // The effect is due, or the next one of its aggregate may run.
            ibid.outbox().enqueued.notify_waiters();
        }
        self.effect(seq).await
    }

    fn outbox(&self) -> Result<&dyn SqlStore, OperatorError> {
        self.store.sql().ok_or(OperatorError::NoOutbox)
    }
}

/// Writes, in one transaction, the effect, the record that waits for it, and a line of history.
async fn write(
    tx: &mut dyn SqlTx,
    seq: i64,
    action: EffectAction,
    act: OperatorAction,
    terms: WriteOptions,
) -> Result<Result<Option<OwedResponse>, OperatorError>, SqlError> {
    let Some(effect) = statements::load(tx, seq, terms.now).await? else {
        return Ok(Err(OperatorError::NoSuchEffect(seq)));
    };
    let Some(change) = action.to_result().change(&effect) else {
        return Ok(Err(action.refusal(&effect)));
    };
    if statements::commit(tx, &change, terms).await?.is_none() {
        return Ok(Err(OperatorError::EffectChanged));
    }
    let name = action.name();
    let owed = match action {
        // A verification may have been due, with the record still waiting for it.
        EffectAction::Discard if effect.owes => {
            settle_record(tx, &effect, &SettledEffect::Dead { why: format!("{name} {act}") }, terms).await?
        }
        _ => None,
    };
    let (before, after) = (effect.state.name(), change.state.name());
    let detail = format!("effect `{}` {name}, {before} to {after}, {act}", effect.name);
    record_sql::add_history(tx, &effect.record, &History { what: Line::Operator, detail }, terms.now).await?;
    Ok(Ok(owed))
}
