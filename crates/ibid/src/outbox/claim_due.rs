//! A look of a worker at the outbox: gives turns to aggregates and claims due effects, in one transaction.

use ibid_core::effect::{EffectClaim, StoredEffect};
use ibid_core::machine::ClaimReason;
use ibid_core::sql::{Database, OwnedTx, SqlError, SqlFault, SqlTx};
use tokio::time::Instant;

use super::due_effects::{DueQuery, TenantWalk};
use super::statements;
use super::worker::Worker;
use crate::failpoint::{self, Hit};
use crate::random::nonce;
use crate::record_sql::WriteOptions;
use crate::slot_shares::SlotShares;
use crate::transaction::TxError;
use crate::transaction::attempt_tx::sql;
use crate::transaction::isolation::lock_rows_only;

/// Result of one look at the outbox.
#[derive(Default)]
pub(super) struct Look {
    pub(super) claims: Vec<Claim>,
    /// `true` if there may be more turns of aggregates than this look has handled.
    pub(super) more_turns: bool,
    /// `true` if due effects of a tenant that has its share of the slots were left.
    pub(super) is_refused: bool,
}

/// An effect that this worker has claimed.
pub(super) struct Claim {
    pub(super) effect: StoredEffect,
    pub(super) reason: ClaimReason,
    /// `true` if the commit of the claim was acknowledged.
    pub(super) is_confirmed: bool,
    /// Instant before the claim was sent.
    pub(super) at: Instant,
}

/// The positions of a worker's walks over tenants, one for each reason.
pub(super) type TenantWalks = [TenantWalk; ClaimReason::ALL.len()];

impl<D: Database + 'static> Worker<D> {
    /// Gives turns to aggregates and claims due effects for the free slots: for every reason, or only those whose call has to
    /// be made.
    pub(super) async fn look(&self, shares: SlotShares, all_reasons: bool) -> Result<Look, TxError> {
        let mut tries = 0;
        loop {
            match self.try_look(shares.clone(), all_reasons).await {
                Err(error) if error.is_retryable() && tries < CLAIM_TRIES_MAX => tries += 1,
                result => return result,
            }
        }
    }

    async fn try_look(&self, mut shares: SlotShares, all_reasons: bool) -> Result<Look, TxError> {
        if self.ibid.engine().is_closed().await {
            // The effects are in another store, or on their way there.
            return Ok(Look::default());
        }
        let at = Instant::now();
        let mut tx = self.handlers.database.begin().await?;
        let store = sql(&self.ibid)?;
        if store.dialect() != tx.dialect() {
            return Err(TxError::OtherDialect);
        }
        let terms = WriteOptions::of(store);
        lock_rows_only(&mut tx).await?;
        let mut kinds: Vec<String> = self.handlers.by_kind.keys().cloned().collect();
        // A position in the circle of kinds counts them.
        kinds.sort_unstable();
        // First, so that an effect that gets its turn now is claimed by this look.
        let turns = statements::give_turns(&mut tx).await?;
        let mut look = Look { more_turns: turns.more, ..Look::default() };
        let mut walks = self.walks.lock().clone();
        let reasons = ClaimReason::ALL.into_iter();
        for reason in reasons.filter(|reason| all_reasons || *reason == ClaimReason::Call) {
            if shares.free() == 0 {
                break;
            }
            let query = DueQuery { kinds: &kinds, reason, now: terms.now };
            let picked = query.pick(&mut tx, &mut shares, &mut walks[reason as usize]).await?;
            look.is_refused |= picked.is_refused;
            if picked.effects.is_empty() {
                continue;
            }
            let seqs = picked.effects.iter().map(|effect| effect.seq).collect();
            let claim = EffectClaim { seqs, reason, nonce: nonce() };
            let effects = statements::take(&mut tx, &claim, terms).await?;
            let claims = effects.into_iter().map(|effect| Claim { effect, reason, is_confirmed: true, at });
            look.claims.extend(claims);
        }
        *self.walks.lock() = walks;
        if look.claims.is_empty() {
            if turns.any {
                // If the commit gets no reply, the turns are given or still stored; a later look handles what is left.
                tx.commit().await?;
            } else {
                // If the rollback fails, the database rolls back when the connection closes.
                let _ = tx.rollback().await;
            }
            return Ok(look);
        }
        commit_claims(tx, look).await
    }
}

/// Commits the claims of a look, and returns the look with the claims that its worker has to execute or release.
async fn commit_claims(tx: impl OwnedTx, mut look: Look) -> Result<Look, TxError> {
    if failpoint::at("claim.before").await == Hit::Error {
        return Err(SqlError::new(SqlFault::Serialization, "a failpoint").into());
    }
    let committed = match tx.commit().await {
        Ok(()) if failpoint::at("claim.after").await == Hit::Lost => {
            Err(SqlError::new(SqlFault::Lost, "a failpoint"))
        }
        committed => committed,
    };
    match committed {
        Ok(()) => Ok(look),
        Err(error) if error.fault() == SqlFault::Lost => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "commit of a claim got no reply; releasing the effects"
            );
            // The claim may not be committed, and then the result of a call under it could not be recorded. So no call
            // is made. Effects that were claimed for a call are released, because none was made. The others stay
            // claimed, if they are, until their lease lapses.
            look.claims.retain(|claim| claim.reason == ClaimReason::Call);
            look.claims.iter_mut().for_each(|claim| claim.is_confirmed = false);
            Ok(look)
        }
        Err(error) => Err(error.into()),
    }
}

/// Retries of a claim after a conflict with another transaction. Few are enough, because the next poll comes soon.
const CLAIM_TRIES_MAX: u32 = 4;
