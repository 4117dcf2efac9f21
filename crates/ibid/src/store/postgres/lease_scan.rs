//! The lease scan: enters records whose first lease has ended into the order of due records.

use ibid_core::store::StoreError;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresCore;
use super::connection::Param;
use super::read::get;

impl PostgresCore {
    /// Scans the first leases that ended since the last scan, by whichever process. A policy that another process scans at
    /// this moment is left to it.
    pub(super) async fn scan_leases(&self) -> Result<(), StoreError> {
        let mut failed = None;
        let params: [Param<'_>; 2] = [(&SCANNED_AFTER_US, Type::INT8), (&BEHIND_US, Type::INT8)];
        let rows = self.ask(OP, include_str!("sql/lease_scan_policies.sql"), &params).await?;
        let policy = |row: &Row| {
            let (digest, ahead) = (get::<i64>(OP, row, 0)?, get::<i64>(OP, row, 1)?);
            Ok(ScannedPolicy { digest, ahead, is_behind: get(OP, row, 2)? })
        };
        let policies = rows.iter().map(policy).collect::<Result<Vec<_>, StoreError>>()?;
        // Policies with one distance share a scan, because it reads the same part of the index for each. One that was not used
        // for long is scanned alone: from its position on, the others have most of the table.
        let share_scan = |one: &ScannedPolicy, next: &ScannedPolicy| {
            one.ahead == next.ahead && !one.is_behind && !next.is_behind
        };
        for group in policies.chunk_by(share_scan) {
            let digests = group.iter().map(|policy| policy.digest).collect();
            // One group must not keep the others from being scanned.
            if let Err(error) = self.scan_group(group[0].ahead, digests).await {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn scan_group(&self, ahead: i64, mut policies: Vec<i64>) -> Result<(), StoreError> {
        let mut from: Option<i64> = None;
        for _ in 0..STEPS_MAX {
            let params: [Param<'_>; 6] = [
                (&from, Type::INT8),
                (&STEP, Type::INT8),
                (&GRACE_US, Type::INT8),
                (&ahead, Type::INT8),
                (&policies, Type::INT8_ARRAY),
                (&SPAN_US, Type::INT8),
            ];
            let rows = self.ask(OP, include_str!("sql/lease_scan.sql"), &params).await?;
            from = rows.first().map_or(Ok(None), |row| get(OP, row, 1))?;
            if from.is_none() {
                break;
            }
            // A policy that another process has scanned in between may not have been scanned from its position to here.
            policies = rows.iter().map(|row| get(OP, row, 0)).collect::<Result<_, _>>()?;
        }
        Ok(())
    }
}

/// A policy whose first leases have to be scanned.
struct ScannedPolicy {
    digest: i64,
    /// Distance of the reaper's instant behind the end of a first lease, in microseconds.
    ahead: i64,
    /// `true` if its position is more than [`BEHIND_US`] back.
    is_behind: bool,
}

const OP: &str = "scan first leases";

/// Distance of a position from now up to which policies are scanned together: many rounds of upkeep, and less than one statement
/// scans.
const BEHIND_US: i64 = 600_000_000;

/// Instants and policies in one statement. A flight begins its records at one instant, so these are some ten thousand records, and
/// some ten milliseconds.
const STEP: i64 = 1000;

/// Ends of leases in one statement, one hour of them: so the entries of other policies that it skips stay bounded.
const SPAN_US: i64 = 3_600_000_000;

/// Statements for one group of policies, a few seconds. After a long time without upkeep the next round continues from there.
const STEPS_MAX: u32 = 200;

/// Time after the end of its lease in which a begin may still become visible and be found. A server whose disk hung for longer than
/// this and the lease is no use to its clients. A begin that comes later is found by its next request, or by the reaper.
const GRACE_US: i64 = 10_000_000;

/// Time for which a policy is scanned after its last use, besides its lease and the hour by which that use may be noted late.
pub(super) const SCANNED_AFTER_US: i64 = 3_600_000_000 + GRACE_US;
