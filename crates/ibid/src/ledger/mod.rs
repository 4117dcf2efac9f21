//! Our books beside the provider's: what it has and we don't, what we have and it doesn't, what differs.
//!
//! [`Comparison`] is fed our lines, then theirs, and holds no more than one side. [`write_letters`] makes dead letters of
//! what the provider has and we don't, each once, so that a person sees them.
//!
//! ```
//! use ibid::ledger::{Comparison, Kind, Line};
//!
//! let line = |number, key: &str, amount: &str| Line {
//!     number,
//!     key: key.to_owned(),
//!     values: vec![amount.to_owned()],
//!     open: false,
//!     partial: false,
//! };
//! let mut comparison = Comparison::new(vec!["amount".to_owned()]);
//! comparison.ours(line(1, "order-7", "12.5"))?;
//! comparison.theirs(line(1, "order-7", "12.50"), String::new)?;
//! comparison.theirs(line(2, "order-7", "12.50"), String::new)?;
//! let report = comparison.end();
//! assert_eq!(report.count(Kind::TheirsTwice), 1);
//! assert_eq!(report.findings.len(), 1);
//! # Ok::<(), ibid::ledger::TooLarge>(())
//! ```

mod compare;

mod decimal;

mod letters;

pub use compare::{Again, Comparison, Counts, Differing, Finding, Kind, Line, Report, Side, TooLarge};
pub use letters::{LETTER_KIND, LetterError, write_letters};

/// What a SQL store knows of its own calls, on either dialect: `key`, `provider_id`, `kind`, `name`, `state` (a code),
/// `tenant`, `done_at` (microseconds). Letters of a ledger are among them, by [`LETTER_KIND`].
pub const EFFECTS_SQL: &str = include_str!("sql/effects.sql");
