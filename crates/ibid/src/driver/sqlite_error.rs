//! Classifies SQLite result codes by whether the transaction may be run again.

use ibid_core::sql::SqlFault;

/// Returns the fault of a result code, extended or primary.
pub(crate) fn fault(code: i32) -> SqlFault {
    match code & PRIMARY {
        // BUSY_SNAPSHOT is one of these: the snapshot is old, and only a new transaction gets a newer one.
        BUSY | LOCKED => SqlFault::Serialization,
        // During a COMMIT the pages may or may not have reached the disk.
        IOERR => SqlFault::Lost,
        _ => SqlFault::Wrong,
    }
}

/// An extended code holds the primary one in its low byte.
const PRIMARY: i32 = 0xff;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const IOERR: i32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_lock_is_retryable_but_a_failing_disk_is_not() {
        let (busy_snapshot, locked_shared_cache, ioerr_fsync, constraint_unique) = (517, 262, 1034, 2067);
        assert_eq!((fault(BUSY), fault(busy_snapshot)), (SqlFault::Serialization, SqlFault::Serialization));
        assert_eq!(fault(locked_shared_cache), SqlFault::Serialization);
        assert_eq!(fault(ioerr_fsync), SqlFault::Lost);
        assert_eq!(fault(constraint_unique), SqlFault::Wrong);
    }
}
