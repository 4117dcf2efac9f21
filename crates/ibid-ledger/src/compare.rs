//! Compares two ledgers: lines in, differences out. This module does no I/O and knows no file format.

use std::collections::HashMap;

use crate::decimal::is_same_value;

/// One line of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerLine {
    /// Line number in its source, from 1.
    pub number: u64,
    /// Key by which both sides are joined. A line with an empty key matches no line of the other side.
    pub key: String,
    /// Values to compare, in the order of the columns.
    pub values: Vec<String>,
    /// Our lines only: the outcome is not certain yet, so the provider may have it or not.
    pub open: bool,
    /// Our lines only: an empty value is unknown and is not compared.
    pub partial: bool,
}

impl LedgerLine {
    /// Creates a line whose outcome is certain and whose empty values are compared, too.
    pub fn new(number: u64, key: impl Into<String>, values: Vec<String>) -> LedgerLine {
        LedgerLine { number, key: key.into(), values, open: false, partial: false }
    }

    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut LedgerLine)) -> LedgerLine {
        change(&mut self);
        self
    }
}

/// A comparison of two ledgers, in progress. Our side is kept in memory.
#[derive(Debug)]
pub struct Comparison {
    columns: Vec<String>,
    ours: HashMap<Box<str>, OurLine>,
    /// Their lines whose key we don't have.
    only_theirs: HashMap<Box<str>, TheirLines>,
    differences: Vec<LedgerDifference>,
    counts: LineCounts,
    memory_bytes: usize,
    memory_bytes_max: usize,
}

#[derive(Debug)]
struct OurLine {
    values: LineValues,
    open: bool,
    partial: bool,
    /// Number of our lines with this key.
    count: u64,
    /// Their lines with this key.
    theirs: Option<TheirLines>,
}

/// The provider's lines with one key.
#[derive(Clone, Copy, Debug)]
struct TheirLines {
    first: u64,
    count: u64,
}

/// Kinds of difference, the most serious first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DifferenceKind {
    /// The provider has more than one line for a key: the double charge.
    TheirsTwice,
    /// The provider has a line for a key, and we have none.
    TheirsOnly,
    /// Both sides have a line for a key, with different values.
    Differs,
    /// We have a line for a key, and the provider has none.
    OursOnly,
    /// We have more than one line for a key.
    OursTwice,
}

impl DifferenceKind {
    /// Every kind, the most serious first.
    pub const ALL: [DifferenceKind; 5] = [
        DifferenceKind::TheirsTwice,
        DifferenceKind::TheirsOnly,
        DifferenceKind::Differs,
        DifferenceKind::OursOnly,
        DifferenceKind::OursTwice,
    ];

    /// Returns the name for tables, JSON and metric labels.
    pub fn name(self) -> &'static str {
        match self {
            DifferenceKind::TheirsTwice => "theirs_twice",
            DifferenceKind::TheirsOnly => "theirs_only",
            DifferenceKind::Differs => "differs",
            DifferenceKind::OursOnly => "ours_only",
            DifferenceKind::OursTwice => "ours_twice",
        }
    }

    /// Returns whether the provider did something that we have no line for, so an operator must look.
    pub fn is_unknown_to_us(self) -> bool {
        matches!(self, DifferenceKind::TheirsTwice | DifferenceKind::TheirsOnly)
    }
}

/// One difference between the two ledgers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerDifference {
    /// Kind of this difference.
    pub kind: DifferenceKind,
    /// Key of the line; empty if it has none.
    pub key: String,
    /// Our line, if we have one.
    pub ours: Option<LineValues>,
    /// The provider's line, if it has one.
    pub theirs: Option<LineValues>,
    /// Set if this side has several lines with this key.
    pub repeat: Option<RepeatedLine>,
    /// Columns whose values differ.
    pub columns: Vec<ColumnDifference>,
    /// The provider's complete line, if we have none for it.
    pub raw: Option<String>,
}

/// Line number and compared values of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineValues {
    /// Line number in its source.
    pub number: u64,
    /// Values that were compared.
    pub values: Vec<String>,
}

/// One of several lines with the same key on the same side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatedLine {
    /// Line number of the first of them.
    pub first: u64,
    /// Position of this line among them, from 2.
    pub nth: u64,
}

/// A column whose values differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnDifference {
    /// Name of the column.
    pub column: String,
    /// Value in our line.
    pub ours: String,
    /// Value in the provider's line.
    pub theirs: String,
}

/// Numbers of lines read and matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Number of our lines.
    pub ours: u64,
    /// Number of the provider's lines.
    pub theirs: u64,
    /// Keys that both sides have with equal values.
    pub alike: u64,
    /// Our open lines that the provider has: these were executed.
    pub open_found: u64,
    /// Our open lines that the provider does not have.
    pub open_missing: u64,
}

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComparisonReport {
    /// Columns that were compared.
    pub columns: Vec<String>,
    /// Numbers of lines read and matched.
    pub counts: LineCounts,
    /// All differences, the most serious kind first, each kind in the order of its lines.
    pub differences: Vec<LedgerDifference>,
}

impl ComparisonReport {
    /// Returns whether there is no difference.
    pub fn is_equal(&self) -> bool {
        self.differences.is_empty()
    }

    /// Returns the number of differences of this kind.
    pub fn count(&self, kind: DifferenceKind) -> u64 {
        self.differences.iter().filter(|difference| difference.kind == kind).count() as u64
    }
}

/// The lines to keep in memory exceed the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lines to keep in memory take more than {} MiB", .memory_bytes_max >> 20)]
pub struct TooLargeError {
    memory_bytes_max: usize,
}

impl Comparison {
    /// Starts a comparison of these columns.
    pub fn new(columns: Vec<String>) -> Comparison {
        Comparison {
            columns,
            ours: HashMap::new(),
            only_theirs: HashMap::new(),
            differences: Vec::new(),
            counts: LineCounts::default(),
            memory_bytes: 0,
            memory_bytes_max: MEMORY_BYTES_MAX,
        }
    }

    /// Returns the columns that are compared.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Limits the memory for lines, in bytes (approximate).
    pub fn memory_bytes_max(mut self, bytes: usize) -> Comparison {
        self.memory_bytes_max = bytes;
        self
    }

    /// Adds one of our lines. Add all of ours before the first of theirs.
    ///
    /// # Errors
    ///
    /// Fails if the lines in memory exceed the limit.
    pub fn ours(&mut self, line: LedgerLine) -> Result<(), TooLargeError> {
        self.counts.ours += 1;
        self.count_bytes(&line.key, &line.values)?;
        let LedgerLine { number, key, values, open, partial } = line;
        let side = LineValues { number, values };
        if key.is_empty() {
            self.add_missing(key, side, open);
            return Ok(());
        }
        if let Some(line) = self.ours.get_mut(key.as_str()) {
            line.count += 1;
            let repeat = Some(RepeatedLine { first: line.values.number, nth: line.count });
            self.differences.push(LedgerDifference {
                ours: Some(side),
                repeat,
                ..LedgerDifference::new(DifferenceKind::OursTwice, key)
            });
        } else {
            self.ours.insert(key.into(), OurLine { values: side, open, partial, count: 1, theirs: None });
        }
        Ok(())
    }

    /// Adds one of their lines and returns the kind of difference, if any.
    ///
    /// `raw` makes the complete line, for an operator. It is called only if we have no line for it.
    ///
    /// # Errors
    ///
    /// Fails if the lines in memory exceed the limit.
    pub fn theirs(
        &mut self,
        line: LedgerLine,
        raw: impl FnOnce() -> String,
    ) -> Result<Option<DifferenceKind>, TooLargeError> {
        self.counts.theirs += 1;
        let LedgerLine { number, key, values, .. } = line;
        let first = TheirLines { first: number, count: 1 };
        let mut repeat = None;
        let mut count = |theirs: &mut TheirLines| {
            theirs.count += 1;
            repeat = Some(RepeatedLine { first: theirs.first, nth: theirs.count });
            DifferenceKind::TheirsTwice
        };
        let (mut ours, mut columns) = (None, Vec::new());
        let kind = match self.ours.get_mut(key.as_str()) {
            Some(OurLine { theirs: Some(theirs), values, .. }) => {
                ours = Some(values.clone());
                count(theirs)
            }
            Some(line) => {
                line.theirs = Some(first);
                columns = line.differing(&self.columns, &values);
                self.counts.open_found += u64::from(line.open);
                if columns.is_empty() {
                    self.counts.alike += 1;
                    return Ok(None);
                }
                ours = Some(line.values.clone());
                DifferenceKind::Differs
            }
            None if key.is_empty() => DifferenceKind::TheirsOnly,
            None => match self.only_theirs.get_mut(key.as_str()) {
                Some(theirs) => count(theirs),
                None => {
                    self.only_theirs.insert(key.as_str().into(), first);
                    DifferenceKind::TheirsOnly
                }
            },
        };
        let raw = kind.is_unknown_to_us().then(raw);
        self.memory_bytes = self.memory_bytes.saturating_add(raw.as_ref().map_or(0, String::len));
        self.count_bytes(&key, &values)?;
        let theirs = Some(LineValues { number, values });
        self.differences.push(LedgerDifference {
            ours,
            theirs,
            repeat,
            columns,
            raw,
            ..LedgerDifference::new(kind, key)
        });
        Ok(Some(kind))
    }

    /// Ends the comparison and returns the report.
    pub fn finish(mut self) -> ComparisonReport {
        for (key, line) in std::mem::take(&mut self.ours) {
            if line.theirs.is_none() {
                self.add_missing(key.into(), line.values, line.open);
            }
        }
        let line = |difference: &LedgerDifference| {
            let side = difference.theirs.as_ref().or(difference.ours.as_ref());
            side.map_or(0, |side| side.number)
        };
        self.differences.sort_by_key(|difference| (difference.kind, line(difference)));
        ComparisonReport { columns: self.columns, counts: self.counts, differences: self.differences }
    }

    /// Counts a line of ours that the provider does not have.
    fn add_missing(&mut self, key: String, side: LineValues, open: bool) {
        if open {
            self.counts.open_missing += 1;
        } else {
            self.differences.push(LedgerDifference {
                ours: Some(side),
                ..LedgerDifference::new(DifferenceKind::OursOnly, key)
            });
        }
    }

    fn count_bytes(&mut self, key: &str, values: &[String]) -> Result<(), TooLargeError> {
        let values: usize = values.iter().map(|value| value.len() + VALUE_BYTES).sum();
        self.memory_bytes = self.memory_bytes.saturating_add(key.len() + values + LINE_BYTES);
        match self.memory_bytes > self.memory_bytes_max {
            true => Err(TooLargeError { memory_bytes_max: self.memory_bytes_max }),
            false => Ok(()),
        }
    }
}

impl LedgerDifference {
    fn new(kind: DifferenceKind, key: String) -> LedgerDifference {
        LedgerDifference { kind, key, ours: None, theirs: None, repeat: None, columns: Vec::new(), raw: None }
    }
}

impl OurLine {
    fn differing(&self, columns: &[String], theirs: &[String]) -> Vec<ColumnDifference> {
        let pairs = columns.iter().zip(self.values.values.iter().zip(theirs));
        let is_known = |ours: &str| !(self.partial && ours.is_empty());
        let odd = pairs.filter(|(_, (ours, theirs))| is_known(ours) && !is_same_value(ours, theirs));
        odd.map(|(column, (ours, theirs))| ColumnDifference {
            column: column.clone(),
            ours: ours.clone(),
            theirs: theirs.clone(),
        })
        .collect()
    }
}

/// Memory for one side: about three million lines. A day of a large provider fits. With more, compare day by day, which
/// finds the same differences.
const MEMORY_BYTES_MAX: usize = 1 << 30;

/// Approximate overhead of the map and the allocator per line. Measured: a million lines of forty bytes and two columns
/// take 390 MB.
const LINE_BYTES: usize = 272;

/// Approximate overhead of the allocator per value.
const VALUE_BYTES: usize = 32;

#[cfg(test)]
mod tests;
