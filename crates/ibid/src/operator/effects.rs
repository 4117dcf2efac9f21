//! Effects as an operator sees them, and all that waits for a person.

use ibid_core::act::Act;
use ibid_core::effect::{EffectFilter, StoredEffect};
use ibid_core::scope::RecordId;
use ibid_core::store::Filter;

use super::{Operator, Page};
use crate::outbox::{self, OperatorError};

/// What a person must look at.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    /// Records.
    pub records: Page,
    /// Effects that are dead, or unknown with nobody left to ask. A store without an outbox has none.
    pub effects: Vec<StoredEffect>,
    /// The cursor of the next effects, if there are more.
    pub next_effect: Option<i64>,
}

impl Operator {
    /// The Effects that fit, in the order of their places, and the cursor of the next ones if there are more.
    pub async fn effects(
        &self,
        filter: EffectFilter,
    ) -> Result<(Vec<StoredEffect>, Option<i64>), OperatorError> {
        let limit = filter.limit as usize;
        let wider = EffectFilter { limit: filter.limit.saturating_add(1), ..filter };
        let mut effects = outbox::operator::list_at(&*self.store, wider).await?;
        let more = effects.len() > limit;
        effects.truncate(limit);
        let next = effects.last().filter(|_| more).map(|effect| effect.seq);
        Ok((effects, next))
    }

    /// The Effect at this place of the outbox.
    pub async fn effect(&self, seq: i64) -> Result<StoredEffect, OperatorError> {
        outbox::operator::load_at(&*self.store, seq).await
    }

    /// Has an Effect made that is dead or unknown: the operator's word that making it (again) is right. As it is then.
    pub async fn retry(&self, seq: i64, act: &Act) -> Result<StoredEffect, OperatorError> {
        outbox::operator::retry_at(&*self.store, self.ibid.as_ref(), seq, act).await?;
        self.effect(seq).await
    }

    /// Lets an Effect go that is dead or unknown: it will not be made. As it is then.
    pub async fn discard(&self, seq: i64, act: &Act) -> Result<StoredEffect, OperatorError> {
        outbox::operator::discard_at(&*self.store, self.ibid.as_ref(), seq, act).await?;
        self.effect(seq).await
    }

    /// All that waits for a person: up to `limit` of each kind, after the cursors.
    pub async fn dead_letters(
        &self,
        records_after: Option<RecordId>,
        effects_after: i64,
        limit: u32,
    ) -> Result<DeadLetters, OperatorError> {
        let filter = Filter { dead_letter: true, after: records_after, limit, ..Filter::default() };
        let records = self.find(filter).await?;
        let dead = EffectFilter { dead_letter: true, after: effects_after, limit, ..EffectFilter::default() };
        let (effects, next_effect) = match self.effects(dead).await {
            Err(OperatorError::NoSql) => (Vec::new(), None),
            found => found?,
        };
        Ok(DeadLetters { records, effects, next_effect })
    }
}
