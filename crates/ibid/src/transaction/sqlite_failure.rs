//! What a result code of SQLite means to the one who may run the transaction again.

use ibid_core::sql::Fault;

/// By its result code, extended or primary.
pub(super) fn fault(code: i32) -> Fault {
    match code & PRIMARY {
        // BUSY_SNAPSHOT is among them: the snapshot is old, and only a new transaction gets a newer one.
        BUSY | LOCKED => Fault::Again,
        // At COMMIT the pages may have reached the disk, or not.
        IOERR => Fault::Lost,
        _ => Fault::Wrong,
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
    fn a_lock_of_somebody_else_means_again_and_a_failing_disk_tells_nothing() {
        let (busy_snapshot, locked_shared_cache, ioerr_fsync, constraint_unique) = (517, 262, 1034, 2067);
        assert_eq!((fault(BUSY), fault(busy_snapshot)), (Fault::Again, Fault::Again));
        assert_eq!(fault(locked_shared_cache), Fault::Again);
        assert_eq!(fault(ioerr_fsync), Fault::Lost);
        assert_eq!(fault(constraint_unique), Fault::Wrong);
    }
}
