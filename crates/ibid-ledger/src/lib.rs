//! Compares your books with a payment provider's: what only one side has, what differs, what was charged twice.
//!
//! [`Comparison`] takes our lines, then theirs, and keeps one side in memory. [`compare_inputs`] reads both sides from
//! files and rows. [`write_dead_letters`] stores a dead letter for each charge that only the provider knows, so that an
//! operator sees it.
//!
//! ```
//! use ibid_ledger::{Comparison, DifferenceKind, LedgerLine};
//!
//! let line = |number, key: &str, amount: &str| LedgerLine::new(number, key, vec![amount.to_owned()]);
//! let mut comparison = Comparison::new(vec!["amount".to_owned()]);
//! comparison.ours(line(1, "order-7", "12.5"))?;
//! comparison.theirs(line(1, "order-7", "12.50"), String::new)?;
//! comparison.theirs(line(2, "order-7", "12.50"), String::new)?;
//! let report = comparison.finish();
//! assert_eq!(report.count(DifferenceKind::TheirsTwice), 1);
//! assert_eq!(report.differences.len(), 1);
//! # Ok::<(), ibid_ledger::TooLargeError>(())
//! ```

#![warn(missing_debug_implementations, clippy::exhaustive_enums)]

mod compare;
pub mod compare_inputs;
mod dead_letters;
mod decimal;
pub mod input_file;
mod json_line;

pub use compare::{
    ColumnDifference, Comparison, ComparisonReport, DifferenceKind, LedgerDifference, LedgerLine, LineCounts,
    LineValues, RepeatedLine, TooLargeError,
};
pub use dead_letters::{DEAD_LETTER_KIND, DeadLetterError, write_dead_letters};
