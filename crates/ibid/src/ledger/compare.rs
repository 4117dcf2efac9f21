//! The comparison itself: lines in, findings out. It reads nothing, writes nothing and knows no format.

use std::collections::HashMap;

use super::decimal::same;

/// One line of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where it stands in its source, from 1.
    pub number: u64,
    /// What it is joined by. A line without a key is joined with nothing: it stands alone on its side.
    pub key: String,
    /// The values that are compared, in the order of the columns.
    pub values: Vec<String>,
    /// Of ours: what came of it is not certain yet, so it may be on the other side or not.
    pub open: bool,
    /// Of ours: what is empty is not known, and is compared with nothing.
    pub partial: bool,
}

/// Two ledgers, one of them held.
#[derive(Debug)]
pub struct Comparison {
    columns: Vec<String>,
    ours: HashMap<Box<str>, Held>,
    /// Keys of theirs that we don't have.
    strangers: HashMap<Box<str>, Met>,
    findings: Vec<Finding>,
    counts: Counts,
    held_bytes: usize,
    held_bytes_max: usize,
}

#[derive(Debug)]
struct Held {
    side: Side,
    open: bool,
    partial: bool,
    /// How many of ours have this key.
    ours: u64,
    /// The first line of theirs with this key, and how many there are.
    met: Option<Met>,
}

/// Lines of theirs with one key.
#[derive(Clone, Copy, Debug)]
struct Met {
    first: u64,
    count: u64,
}

/// What is found, the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The provider has more than one for a key: the double charge.
    TheirsTwice,
    /// The provider has it, and we don't.
    TheirsOnly,
    /// Both have it, and not alike.
    Differs,
    /// We have it, and the provider does not.
    OursOnly,
    /// We have more than one for a key.
    OursTwice,
}

impl Kind {
    /// Every kind, the gravest first.
    pub const ALL: [Kind; 5] =
        [Kind::TheirsTwice, Kind::TheirsOnly, Kind::Differs, Kind::OursOnly, Kind::OursTwice];

    /// The word for it, in tables, JSON and labels.
    pub fn name(self) -> &'static str {
        match self {
            Kind::TheirsTwice => "theirs_twice",
            Kind::TheirsOnly => "theirs_only",
            Kind::Differs => "differs",
            Kind::OursOnly => "ours_only",
            Kind::OursTwice => "ours_twice",
        }
    }

    /// Whether the provider did something that we know nothing of: then a person must look.
    pub fn is_unknown_to_us(self) -> bool {
        matches!(self, Kind::TheirsTwice | Kind::TheirsOnly)
    }
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is.
    pub kind: Kind,
    /// Of which key; empty for a line that has none.
    pub key: String,
    /// Our line.
    pub ours: Option<Side>,
    /// Their line.
    pub theirs: Option<Side>,
    /// With more than one on a side, of the same key: which one this is.
    pub again: Option<Again>,
    /// The columns that differ.
    pub columns: Vec<Differing>,
    /// The provider's whole line, where we have none for it.
    pub whole: Option<String>,
}

/// A line of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Where it stands.
    pub number: u64,
    /// What was compared.
    pub values: Vec<String>,
}

/// One of several lines with the same key on the same side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    /// The line of the first.
    pub first: u64,
    /// Which one this is: from 2.
    pub nth: u64,
}

/// A column that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differing {
    /// Which.
    pub column: String,
    /// What we have there.
    pub ours: String,
    /// What they have there.
    pub theirs: String,
}

/// How many lines there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Of ours.
    pub ours: u64,
    /// Of theirs.
    pub theirs: u64,
    /// Keys that both have and that are alike.
    pub alike: u64,
    /// Lines of ours whose outcome is open, and which the provider has: it was done.
    pub open_found: u64,
    /// Lines of ours whose outcome is open, and which the provider does not have.
    pub open_missing: u64,
}

/// What came of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The columns that were compared.
    pub columns: Vec<String>,
    /// How many lines there were.
    pub counts: Counts,
    /// All differences, the gravest first, each kind in the order of its lines.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether nothing was found.
    pub fn is_equal(&self) -> bool {
        self.findings.is_empty()
    }

    /// How many were found of this kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.findings.iter().filter(|finding| finding.kind == kind).count() as u64
    }
}

/// More lines than may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lines to be held take more than {} MiB", .held_bytes_max >> 20)]
pub struct TooLarge {
    held_bytes_max: usize,
}

impl Comparison {
    /// Of these columns.
    pub fn new(columns: Vec<String>) -> Comparison {
        Comparison {
            columns,
            ours: HashMap::new(),
            strangers: HashMap::new(),
            findings: Vec::new(),
            counts: Counts::default(),
            held_bytes: 0,
            held_bytes_max: HELD_BYTES_MAX,
        }
    }

    /// Holding no more than about so many bytes.
    pub fn held_bytes_max(mut self, bytes: usize) -> Comparison {
        self.held_bytes_max = bytes;
        self
    }

    /// A line of ours. All of ours come before the first of theirs.
    pub fn ours(&mut self, line: Line) -> Result<(), TooLarge> {
        self.counts.ours += 1;
        self.hold(&line.key, &line.values)?;
        let Line { number, key, values, open, partial } = line;
        let side = Side { number, values };
        if key.is_empty() {
            self.missing(key, side, open);
            return Ok(());
        }
        if let Some(held) = self.ours.get_mut(key.as_str()) {
            held.ours += 1;
            let again = Some(Again { first: held.side.number, nth: held.ours });
            self.findings.push(Finding { ours: Some(side), again, ..Finding::new(Kind::OursTwice, key) });
        } else {
            self.ours.insert(key.into(), Held { side, open, partial, ours: 1, met: None });
        }
        Ok(())
    }

    /// A line of theirs, and all of it for a person, asked for only if we have none for it. Says what it was found to be.
    pub fn theirs(&mut self, line: Line, whole: impl FnOnce() -> String) -> Result<Option<Kind>, TooLarge> {
        self.counts.theirs += 1;
        let Line { number, key, values, .. } = line;
        let first = Met { first: number, count: 1 };
        let mut again = None;
        let mut count = |met: &mut Met| {
            met.count += 1;
            again = Some(Again { first: met.first, nth: met.count });
            Kind::TheirsTwice
        };
        let (mut ours, mut columns) = (None, Vec::new());
        let kind = match self.ours.get_mut(key.as_str()) {
            Some(Held { met: Some(met), side, .. }) => {
                ours = Some(side.clone());
                count(met)
            }
            Some(held) => {
                held.met = Some(first);
                columns = held.differing(&self.columns, &values);
                self.counts.open_found += u64::from(held.open);
                if columns.is_empty() {
                    self.counts.alike += 1;
                    return Ok(None);
                }
                ours = Some(held.side.clone());
                Kind::Differs
            }
            None if key.is_empty() => Kind::TheirsOnly,
            None => match self.strangers.get_mut(key.as_str()) {
                Some(met) => count(met),
                None => {
                    self.strangers.insert(key.as_str().into(), first);
                    Kind::TheirsOnly
                }
            },
        };
        let whole = kind.is_unknown_to_us().then(whole);
        self.held_bytes = self.held_bytes.saturating_add(whole.as_ref().map_or(0, String::len));
        self.hold(&key, &values)?;
        let theirs = Some(Side { number, values });
        self.findings.push(Finding { ours, theirs, again, columns, whole, ..Finding::new(kind, key) });
        Ok(Some(kind))
    }

    /// What was found.
    pub fn end(mut self) -> Report {
        for (key, held) in std::mem::take(&mut self.ours) {
            if held.met.is_none() {
                self.missing(key.into(), held.side, held.open);
            }
        }
        let line = |finding: &Finding| {
            let side = finding.theirs.as_ref().or(finding.ours.as_ref());
            side.map_or(0, |side| side.number)
        };
        self.findings.sort_by_key(|finding| (finding.kind, line(finding)));
        Report { columns: self.columns, counts: self.counts, findings: self.findings }
    }

    /// A line of ours that the provider does not have.
    fn missing(&mut self, key: String, side: Side, open: bool) {
        if open {
            self.counts.open_missing += 1;
        } else {
            self.findings.push(Finding { ours: Some(side), ..Finding::new(Kind::OursOnly, key) });
        }
    }

    fn hold(&mut self, key: &str, values: &[String]) -> Result<(), TooLarge> {
        let values: usize = values.iter().map(|value| value.len() + VALUE_BYTES).sum();
        self.held_bytes = self.held_bytes.saturating_add(key.len() + values + LINE_BYTES);
        match self.held_bytes > self.held_bytes_max {
            true => Err(TooLarge { held_bytes_max: self.held_bytes_max }),
            false => Ok(()),
        }
    }
}

impl Finding {
    fn new(kind: Kind, key: String) -> Finding {
        Finding { kind, key, ours: None, theirs: None, again: None, columns: Vec::new(), whole: None }
    }
}

impl Held {
    fn differing(&self, columns: &[String], theirs: &[String]) -> Vec<Differing> {
        let pairs = columns.iter().zip(self.side.values.iter().zip(theirs));
        let is_known = |ours: &str| !(self.partial && ours.is_empty());
        let odd = pairs.filter(|(_, (ours, theirs))| is_known(ours) && !same(ours, theirs));
        odd.map(|(column, (ours, theirs))| Differing {
            column: column.clone(),
            ours: ours.clone(),
            theirs: theirs.clone(),
        })
        .collect()
    }
}

/// What one side may take in memory: some three million lines. A day of a large provider fits; who has more compares day
/// by day, which finds the same.
const HELD_BYTES_MAX: usize = 1 << 30;

/// About what the map and the allocator add to a line: a million lines of forty bytes and two columns were measured to
/// take 390 MB.
const LINE_BYTES: usize = 272;

/// The same for a value.
const VALUE_BYTES: usize = 32;

#[cfg(test)]
mod tests;
