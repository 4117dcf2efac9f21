//! Picks the due effects that a look of a worker claims: the oldest first, but no more of a tenant than its share of the slots.
//!
//! A look first reads the oldest due effects of all tenants, one for each free slot. That is all of the work unless a tenant
//! has its share: then the page may hold nothing but its backlog. So the look continues from tenant to tenant, by an index in
//! which a tenant costs one step, however many of its effects are due.
//!
//! Locks and order. A pick locks every row that it reads, also those of a tenant that has its share, until the look ends:
//!
//! - W1 picks A's effects 1 to 8, may take none, and holds the locks; W2, with room for A, skips them and picks 9 to 16. Only an
//!   effect that is first in its aggregate is not blocked, so no order between effects of one aggregate is lost.
//! - W1 picks 1 and 2, which are all that A has; W2 skips both and finds nothing due; W1 commits without them. They wait for the
//!   next poll of W2, about a second, or for a slot of A at W1.
//! - W1 reads that B has a due effect, W2 claims it, W1 picks for B: the pick compares state and due time again, and finds
//!   nothing. Only a pick locks, so only a pick decides.

use std::collections::HashSet;

use ibid_core::machine::ClaimReason;
use ibid_core::sql::Type::{I64, Text};
use ibid_core::sql::{Dialect, Param, SqlError, SqlTx, Statement};
use ibid_core::time::Timestamp;

use super::statements::code;
use crate::record_sql::{DialectSql, in_all_dialects, in_dialect, instant};
use crate::slot_shares::SlotShares;

/// A due effect that this transaction has locked.
#[derive(Debug)]
pub(super) struct DueEffect {
    pub(super) seq: i64,
    tenant: String,
    due_at: i64,
}

/// Outcome of one pick.
#[derive(Debug, Default)]
pub(super) struct PickResult {
    /// The effects to claim.
    pub(super) effects: Vec<DueEffect>,
    /// `true` if due effects of a tenant that has its share were left.
    pub(super) is_refused: bool,
}

/// Position of a worker in the circle of its kinds and their tenants. Each walk continues where the last one ended, so that
/// no tenant is always the first.
#[derive(Clone, Debug, Default)]
pub(super) struct TenantWalk {
    kind: usize,
    after: String,
}

/// Parameters of a look, the same for each of its statements.
#[derive(Clone, Copy)]
pub(super) struct DueQuery<'a> {
    /// Kinds that the worker has handlers for: at least one.
    pub(super) kinds: &'a [String],
    pub(super) reason: ClaimReason,
    pub(super) now: Option<Timestamp>,
}

impl DueQuery<'_> {
    /// Picks due effects for the free slots in `shares`. Goes from tenant to tenant if the oldest are of tenants that have
    /// their share.
    pub(super) async fn pick(
        self,
        tx: &mut dyn SqlTx,
        shares: &mut SlotShares,
        walk: &mut TenantWalk,
    ) -> Result<PickResult, SqlError> {
        let limit = shares.free();
        let oldest = self.pick_oldest(tx, limit).await?;
        let is_all = oldest.len() < limit;
        let mut picked = PickResult::default();
        for effect in oldest {
            if shares.admit(&effect.tenant) {
                picked.effects.push(effect);
            } else {
                picked.is_refused = true;
            }
        }
        if picked.is_refused && !is_all {
            self.walk(tx, shares, walk, &mut picked.effects).await?;
        }
        Ok(picked)
    }

    /// Continues through the circle until no slot is free, each tenant was visited, or the bound is reached.
    async fn walk(
        self,
        tx: &mut dyn SqlTx,
        shares: &mut SlotShares,
        position: &mut TenantWalk,
        picked: &mut Vec<DueEffect>,
    ) -> Result<(), SqlError> {
        let visits_max = if tx.dialect() == Dialect::Mysql { STEPS_MAX } else { VISITS_MAX };
        let mut visited = HashSet::new();
        let first = position.kind % self.kinds.len();
        // The first kind comes a second time, for the tenants before the position.
        for step in 0..=self.kinds.len() {
            let kind = (first + step) % self.kinds.len();
            if step > 0 {
                *position = TenantWalk { kind, after: String::new() };
            }
            loop {
                if shares.free() == 0 {
                    return Ok(());
                }
                let page = self.next_tenants(tx, kind, &position.after).await?;
                let is_last = page.is_empty();
                for (tenant, is_due) in page {
                    let is_again = !visited.insert((kind, tenant.clone()));
                    if is_again || visited.len() > visits_max || shares.free() == 0 {
                        return Ok(());
                    }
                    if is_due {
                        self.pick_of(tx, kind, &tenant, shares, picked).await?;
                    }
                    position.after = tenant;
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Picks due effects of one tenant.
    async fn pick_of(
        self,
        tx: &mut dyn SqlTx,
        kind: usize,
        tenant: &str,
        shares: &mut SlotShares,
        picked: &mut Vec<DueEffect>,
    ) -> Result<(), SqlError> {
        let room = shares.room(tenant);
        if room == 0 {
            return Ok(());
        }
        // This transaction does not skip its own locks, so the query also returns the effects already picked.
        let before = picked.iter().filter(|effect| effect.tenant == tenant).count();
        let limit = count(room + before);
        let (now, from, kind) = (instant(self.now), self.state(), Param::Text(&self.kinds[kind]));
        let rows = tx
            .query(in_dialect(tx, &PICK_TENANT_DUE), &[now, from, kind, Param::Text(tenant), limit])
            .await?;
        for mut row in rows {
            let effect = DueEffect { seq: row.i64()?, tenant: row.text()?, due_at: row.i64()? };
            let is_picked = picked.iter().any(|other| other.seq == effect.seq);
            if !is_picked && shares.admit(&effect.tenant) {
                picked.push(effect);
            }
        }
        Ok(())
    }

    /// Picks the oldest due effects of all kinds and tenants.
    async fn pick_oldest(self, tx: &mut dyn SqlTx, limit: usize) -> Result<Vec<DueEffect>, SqlError> {
        let (now, from) = (instant(self.now), self.state());
        let mut rows = Vec::new();
        if tx.dialect() == Dialect::Mysql {
            for kind in self.kinds {
                rows.extend(tx.query(&PICK_DUE_ON_MYSQL, &[Param::Text(kind), from, count(limit)]).await?);
            }
        } else {
            // `Param` has no array type, so the kinds are passed as JSON.
            let kinds = serde_json::to_string(self.kinds).expect("strings are JSON");
            let params = [now, from, Param::Text(&kinds), count(limit)];
            rows = tx.query(in_dialect(tx, &PICK_DUE), &params).await?;
        }
        let mut effects = Vec::new();
        for mut row in rows {
            effects.push(DueEffect { seq: row.i64()?, tenant: row.text()?, due_at: row.i64()? });
        }
        effects.sort_unstable_by_key(|effect| (effect.due_at, effect.seq));
        effects.truncate(limit);
        Ok(effects)
    }

    /// Returns some tenants after this one that have effects, and whether one of these is due. An empty page ends the kind.
    async fn next_tenants(
        self,
        tx: &mut dyn SqlTx,
        kind: usize,
        after: &str,
    ) -> Result<Vec<(String, bool)>, SqlError> {
        let size = if tx.dialect() == Dialect::Mysql { 1 } else { TENANTS_PAGE };
        let (now, from, kind) = (instant(self.now), self.state(), Param::Text(&self.kinds[kind]));
        let params = [now, from, kind, Param::Text(after), count(size)];
        let rows = tx.query(in_dialect(tx, &NEXT_TENANTS), &params).await?;
        rows.into_iter().map(|mut row| Ok((row.text()?, row.i64()? != 0))).collect()
    }

    fn state(self) -> Param<'static> {
        let (from, _) = self.reason.states();
        code(from)
    }
}

fn count(number: usize) -> Param<'static> {
    Param::I64(i64::try_from(number).unwrap_or(i64::MAX))
}

static PICK_DUE: DialectSql = DialectSql::new(
    include_str!("sql/postgres/pick_due.sql"),
    include_str!("sql/sqlite/pick_due.sql"),
    "",
    &[I64, Text, I64],
);
static PICK_DUE_ON_MYSQL: Statement =
    Statement { text: include_str!("sql/mysql/pick_due.sql"), columns: &[I64, Text, I64] };
static PICK_TENANT_DUE: DialectSql = in_all_dialects!("sql/", "pick_tenant_due.sql", &[I64, Text, I64]);
static NEXT_TENANTS: DialectSql = in_all_dialects!("sql/", "next_tenants.sql", &[Text, I64]);

/// Tenants that one walk visits, of those that have effects of a kind in its state, due or not. A visit reads three pages of
/// an index, so a walk takes a millisecond or two. The next walk, a second later at most, continues behind the last tenant.
const VISITS_MAX: usize = 256;

/// Tenants that one walk visits on MySQL, where each visit is a round trip.
const STEPS_MAX: usize = 32;

/// Tenants that one statement of a walk visits. Most walks end after a few, and each costs a step even if it is not used.
const TENANTS_PAGE: usize = 32;
