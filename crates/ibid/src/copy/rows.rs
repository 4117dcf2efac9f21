//! The parts of a store that are copied one after the other, and their rows.

use std::fmt;

use ibid_core::effect::StoredEffect;
use ibid_core::evidence::StoredEvidence;
use ibid_core::machine::EffectState;
use ibid_core::record::State;
use ibid_core::store::copy::{ClockShift, CopyPart, CopyRow, RowDigest, RowTotals, SettingFence};
use ibid_core::store::{Cursor, Page, Store, StoreError};

use crate::outbox::copy as effects;

/// A part of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopiedPart {
    /// Effects, the calls to other services.
    Effects,
    /// Records with their responses and bodies.
    Records,
    /// The history of records.
    History,
    /// Evidence that webhooks have brought.
    Evidence,
}

impl CopiedPart {
    /// All parts, in the order in which they are copied.
    ///
    /// Effects go before records. Otherwise T1 (a worker) ends an effect and, in the same commit, the record that waits for it,
    /// after the record was copied and before the effect is: the target's record would wait for an effect that has ended. For
    /// the same reason evidence goes first: the sweep of a copy may use it up, and it must not be lost to a copied record.
    pub const ALL: [CopiedPart; 4] =
        [CopiedPart::Evidence, CopiedPart::Effects, CopiedPart::Records, CopiedPart::History];

    /// Returns the name of the part's rows.
    pub fn name(self) -> &'static str {
        match self {
            CopiedPart::Effects => "effects",
            CopiedPart::Records => "records",
            CopiedPart::History => "histories",
            CopiedPart::Evidence => "pieces of evidence",
        }
    }

    /// Returns whether a store can hold the part.
    pub(super) fn fits(self, store: &dyn Store) -> bool {
        match self {
            CopiedPart::Effects => store.sql().is_some(),
            CopiedPart::Records => true,
            CopiedPart::History => store.browse().is_some(),
            CopiedPart::Evidence => store.evidence().is_some(),
        }
    }
}

impl fmt::Display for CopiedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the number of rows of each part.
pub(super) fn name_parts(parts: &[RowTotals]) -> Vec<(CopiedPart, u64)> {
    CopiedPart::ALL.into_iter().zip(parts).map(|(part, totals)| (part, totals.count)).collect()
}

/// A row of any part.
#[derive(Clone)]
pub(super) enum PartRow {
    Effect(Box<StoredEffect>),
    Other(CopyRow),
}

impl PartRow {
    pub(super) fn shift(self, by: ClockShift) -> PartRow {
        match self {
            PartRow::Effect(effect) => PartRow::Effect(Box::new(effects::shift(*effect, by))),
            PartRow::Other(row) => PartRow::Other(row.shift(by)),
        }
    }

    pub(super) fn digest(&self) -> RowDigest {
        match self {
            PartRow::Effect(effect) => effects::digest(effect),
            PartRow::Other(row) => row.digest(),
        }
    }

    /// Returns whether a process may be at work on the row under a lease, so that it must not be copied yet. A lapsed record is
    /// swept first; a claim that has lapsed is replaced, see [`PartRow::lapsed_claim`].
    pub(super) fn is_leased(&self) -> bool {
        match self {
            PartRow::Effect(effect) => {
                effect.state == EffectState::LEASED && effect.due_at.is_some_and(|at| at > effect.now)
            }
            PartRow::Other(CopyRow::Record(row)) => row.record.state == State::LEASED,
            PartRow::Other(CopyRow::History(_) | CopyRow::Evidence(_)) => false,
        }
    }

    /// Returns the effect if its claim has lapsed.
    pub(super) fn lapsed_claim(&self) -> Option<&StoredEffect> {
        match self {
            PartRow::Effect(effect) if effect.state == EffectState::LEASED && !self.is_leased() => {
                Some(effect)
            }
            _ => None,
        }
    }

    /// Returns whether something is still to be done about the row: it must not be left behind.
    pub(super) fn is_open(&self) -> bool {
        match self {
            PartRow::Effect(effect) => effects::is_open(effect),
            PartRow::Other(CopyRow::Evidence(row)) => {
                let StoredEvidence { open, .. } = row.stored;
                open
            }
            PartRow::Other(CopyRow::Record(_) | CopyRow::History(_)) => false,
        }
    }

    /// Returns whether the row has bodies apart from a response.
    pub(super) fn has_bodies(&self) -> bool {
        matches!(self, PartRow::Other(CopyRow::Record(row)) if !row.bodies.is_empty())
    }
}

/// Reads one page of a part.
pub(super) async fn page(
    store: &dyn Store,
    part: CopiedPart,
    after: Option<Cursor>,
    limit: u32,
) -> Result<Page<PartRow>, StoreError> {
    let kind = match part {
        CopiedPart::Effects => {
            let Page { items, next } = effects::export(store, after, limit).await?;
            let items = items.into_iter().map(|effect| PartRow::Effect(Box::new(effect))).collect();
            return Ok(Page { items, next });
        }
        CopiedPart::Records => CopyPart::Records,
        CopiedPart::History => CopyPart::History,
        CopiedPart::Evidence => CopyPart::Evidence,
    };
    let Page { items, next } = store.require_copy()?.export(kind, after, limit).await?;
    Ok(Page { items: items.into_iter().map(PartRow::Other).collect(), next })
}

/// Fails if the store can't hold one of these rows.
pub(super) async fn check(store: &dyn Store, rows: Vec<PartRow>) -> Result<(), StoreError> {
    let (of_outbox, others) = split(rows);
    if let (Some(sql), false) = (store.sql(), of_outbox.is_empty()) {
        effects::check(sql, &of_outbox).await?;
    }
    match others.is_empty() {
        true => Ok(()),
        false => store.require_copy()?.check(others).await,
    }
}

/// Stores rows of one part.
pub(super) async fn put(
    store: &dyn Store,
    fence: SettingFence,
    rows: Vec<PartRow>,
) -> Result<(), StoreError> {
    let (of_outbox, others) = split(rows);
    if let (Some(sql), false) = (store.sql(), of_outbox.is_empty()) {
        effects::import(sql, fence.clone(), of_outbox).await?;
    }
    match others.is_empty() {
        true => Ok(()),
        false => store.require_copy()?.import(fence, others).await,
    }
}

fn split(rows: Vec<PartRow>) -> (Vec<StoredEffect>, Vec<CopyRow>) {
    let (mut of_outbox, mut others) = (Vec::new(), Vec::new());
    for row in rows {
        match row {
            PartRow::Effect(effect) => of_outbox.push(*effect),
            PartRow::Other(row) => others.push(row),
        }
    }
    (of_outbox, others)
}
