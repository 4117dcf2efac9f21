//! The lease scan: enters records whose first lease has ended into the order of due records.

use ibid_core::store::StoreError;
use tokio_postgres::types::Type;

use super::StoreCore;
use super::connection::Param;
use super::read::get;

impl StoreCore {
    /// Scans the first leases that ended since the last scan, by whichever process. A policy that another process scans at
    /// this moment is left to it.
    pub(super) async fn scan_leases(&self) -> Result<(), StoreError> {
        let mut failed = None;
        let params: [Param<'_>; 1] = [(&SCANNED_AFTER_US, Type::INT8)];
        for row in self.ask_hot(OP, include_str!("sql/lease_scan_policies.sql"), &params).await? {
            // One policy must not keep the others from being scanned.
            if let Err(error) = self.scan_policy(get(OP, &row, 0)?, get(OP, &row, 1)?).await {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn scan_policy(&self, policy: i64, ahead: i64) -> Result<(), StoreError> {
        let mut from: Option<i64> = None;
        for _ in 0..STEPS_MAX {
            let params: [Param<'_>; 6] = [
                (&from, Type::INT8),
                (&STEP, Type::INT8),
                (&GRACE_US, Type::INT8),
                (&ahead, Type::INT8),
                (&policy, Type::INT8),
                (&SPAN_US, Type::INT8),
            ];
            let rows = self.ask_hot(OP, include_str!("sql/lease_scan.sql"), &params).await?;
            from = rows.first().map_or(Ok(None), |row| get(OP, row, 0))?;
            if from.is_none() {
                break;
            }
        }
        Ok(())
    }
}

const OP: &str = "scan first leases";

/// Records in one statement: some ten milliseconds.
const STEP: i64 = 5000;

/// Ends of leases in one statement, one hour of them: so the entries of other policies that it skips stay bounded.
const SPAN_US: i64 = 3_600_000_000;

/// Statements for one policy, a few seconds. After a long time without upkeep the next round continues from there.
const STEPS_MAX: u32 = 200;

/// Time after the end of its lease in which a begin may still become visible and be found. A server whose disk hung for longer than
/// this and the lease is no use to its clients. A begin that comes later is found by its next request, or by the reaper.
const GRACE_US: i64 = 10_000_000;

/// Time for which a policy is scanned after its last use, besides its lease and the hour by which that use may be noted late.
const SCANNED_AFTER_US: i64 = 3_600_000_000 + GRACE_US;
