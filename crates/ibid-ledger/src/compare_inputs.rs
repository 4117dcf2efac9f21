//! Reads both sides and feeds them to a [`Comparison`], ours first.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use ibid_ledger::compare_inputs::{CompareOptions, OurSide, OurSource, add_theirs};
//! use ibid_ledger::input_file::{InputError, InputFile};
//!
//! # fn main() -> Result<(), Vec<InputError>> {
//! let options = CompareOptions::new("id");
//! let mut progress = |_lines| ControlFlow::Continue(());
//! let theirs = InputFile::open("charges.csv", None, None).map_err(|error| vec![error])?;
//! let source = OurSource::File("payments.csv".to_owned());
//! let mut ours = OurSide::new(&options, &source, &theirs.columns, &mut progress);
//! ours.read_file("payments.csv", None)?;
//! let report = add_theirs(ours.finish(&[])?, &options, theirs, &mut progress)?;
//! println!("{} differences", report.differences.len());
//! # Ok(())
//! # }
//! ```

use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ibid_core::machine::EffectState;

use crate::compare::{Comparison, ComparisonReport, LedgerLine, TooLargeError};
use crate::dead_letters::DEAD_LETTER_KIND;
use crate::input_file::{InputError, InputErrorKind, InputFile, InputFormat, bad_line};

/// Columns and rules of a comparison.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CompareOptions {
    /// Column by which both sides are joined.
    pub key: String,
    /// Columns to compare. Empty: all that both sides have; for effects, `provider_id`.
    pub compare: Vec<String>,
    /// Column of ours that marks a line as open.
    pub open: Option<String>,
    /// Effects that were done longer ago than this may be missing at the provider.
    pub since: Option<Duration>,
}

impl CompareOptions {
    /// Creates options that join both sides by the column `key`.
    pub fn new(key: impl Into<String>) -> CompareOptions {
        CompareOptions { key: key.into(), ..CompareOptions::default() }
    }

    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut CompareOptions)) -> CompareOptions {
        change(&mut self);
        self
    }

    /// Returns the columns that a file must have, if the caller named those to compare.
    fn columns_to_read(&self, open: Option<&String>) -> Option<Vec<String>> {
        let named = [&self.key].into_iter().chain(&self.compare).chain(open);
        (!self.compare.is_empty()).then(|| named.cloned().collect())
    }

    /// Opens the provider's file.
    ///
    /// # Errors
    ///
    /// See [`InputFile::open`].
    pub fn open_theirs(&self, name: &str, format: Option<InputFormat>) -> Result<InputFile, InputError> {
        InputFile::open(name, format, self.columns_to_read(None).as_deref())
    }
}

/// Source of our side.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a caller that misses a source would compare with nothing")]
pub enum OurSource {
    /// A file, or stdin for `-`.
    File(String),
    /// The calls in the store's outbox, optionally of one kind only: the rows of [`EFFECTS_SQL`].
    Effects(Option<String>),
    /// The rows of a statement.
    Sql(String),
}

/// Called every ten thousand lines with the number of lines read. `Break` stops the comparison.
pub type OnProgress<'a> = &'a mut (dyn FnMut(u64) -> ControlFlow<()> + Send);

/// Our side while it is read.
pub struct OurSide<'a> {
    options: &'a CompareOptions,
    source: &'a OurSource,
    their_columns: &'a [String],
    layout: Option<(Layout, Comparison)>,
    bad_lines: Vec<InputError>,
    rows: u64,
    progress: Progress<'a>,
}

impl std::fmt::Debug for OurSide<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OurSide")
            .field("source", self.source)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

impl<'a> OurSide<'a> {
    /// Starts to read our side, for a comparison with a side that has these columns.
    pub fn new(
        options: &'a CompareOptions,
        source: &'a OurSource,
        their_columns: &'a [String],
        on_progress: OnProgress<'a>,
    ) -> OurSide<'a> {
        let progress = Progress { lines: 0, on_progress };
        OurSide { options, source, their_columns, layout: None, bad_lines: Vec::new(), rows: 0, progress }
    }

    /// Reads all lines of a file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or after 20 bad lines. Fewer bad lines are reported by [`OurSide::finish`].
    pub fn read_file(&mut self, name: &str, format: Option<InputFormat>) -> Result<(), Vec<InputError>> {
        let wanted = self.options.columns_to_read(self.options.open.as_ref());
        let mut file = InputFile::open(name, format, wanted.as_deref()).map_err(one)?;
        if !file.is_blank() {
            self.start(&file.name, &file.columns).map_err(one)?;
        }
        while let Some(row) = file.next_row() {
            match row {
                Ok(row) => self.add(&file.name, row.number, row.cells)?,
                Err(error) => add_bad_line(&mut self.bad_lines, error)?,
            }
        }
        Ok(())
    }

    /// Adds one row of the store's database. For [`OurSource::Effects`] the columns are those of [`EFFECTS_SQL`].
    ///
    /// # Errors
    ///
    /// Fails if a column is missing, or after 20 bad rows. Fewer bad rows are reported by [`OurSide::finish`].
    pub fn row(&mut self, columns: &[String], cells: Vec<Option<String>>) -> Result<(), Vec<InputError>> {
        let cells: Vec<String> = cells.into_iter().map(Option::unwrap_or_default).collect();
        self.rows += 1;
        if self.layout.is_none() {
            self.start(self.name(), columns).map_err(one)?;
        }
        match self.source {
            OurSource::Effects(kind) => self.add_effect(kind.as_deref(), columns, cells),
            _ => self.add(self.name(), self.rows, cells),
        }
    }

    /// Ends our side. `columns` are those of a statement, in case it returned no row.
    ///
    /// # Errors
    ///
    /// Returns the bad lines, if there were any.
    pub fn finish(mut self, columns: &[String]) -> Result<Comparison, Vec<InputError>> {
        if self.layout.is_none() && !matches!(self.source, OurSource::File(_)) {
            self.start(self.name(), columns).map_err(one)?;
        }
        match self.bad_lines.is_empty() {
            // A side without a line has nothing to compare.
            true => Ok(self.layout.map_or_else(|| Comparison::new(Vec::new()), |(_, comparison)| comparison)),
            false => Err(self.bad_lines),
        }
    }

    /// Returns the name of the source in messages, for rows of the store.
    fn name(&self) -> &'static str {
        if matches!(self.source, OurSource::Effects(_)) { "`--ours effects`" } else { "`--ours sql:`" }
    }

    /// Decides which columns are compared, now that the columns of both sides are known.
    fn start(&mut self, name: &str, columns: &[String]) -> Result<(), InputError> {
        let CompareOptions { key, compare, open, .. } = self.options;
        let is_in_both = |column: &&String| {
            self.their_columns.contains(column) && *column != key && Some(*column) != open.as_ref()
        };
        let compared: Vec<String> = match (&compare[..], self.source) {
            ([], OurSource::Effects(_)) => {
                columns.iter().filter(|name| *name == "provider_id").filter(is_in_both).cloned().collect()
            }
            ([], _) => columns.iter().filter(is_in_both).cloned().collect(),
            (named, _) => named.to_vec(),
        };
        let layout = Layout::new(name, columns, key, &compared, open.as_ref())?;
        self.layout = Some((layout, Comparison::new(compared)));
        Ok(())
    }

    fn add(&mut self, name: &str, number: u64, cells: Vec<String>) -> Result<(), Vec<InputError>> {
        self.progress.line().map_err(one)?;
        let Some((layout, comparison)) = &mut self.layout else { return Ok(()) };
        match layout.line(name, number, cells) {
            Ok(line) => comparison.ours(line).map_err(|error| one(too_large(error))),
            Err(error) => add_bad_line(&mut self.bad_lines, error),
        }
    }

    /// Adds one call of ours, as done or open. Discarded calls and dead letters of a ledger are not ours.
    fn add_effect(
        &mut self,
        kind: Option<&str>,
        columns: &[String],
        mut cells: Vec<String>,
    ) -> Result<(), Vec<InputError>> {
        let (name, number) = (self.name(), self.rows);
        let index = |wanted: &str| columns.iter().position(|column| column == wanted).unwrap_or_default();
        let own_kind = &cells[index("kind")];
        let Some(state) = cells[index("state")].parse().ok().and_then(EffectState::from_code) else {
            let error = bad_line(name, number, "a state that this ibid does not know");
            return add_bad_line(&mut self.bad_lines, error);
        };
        if own_kind == DEAD_LETTER_KIND || kind.is_some_and(|kind| kind != own_kind) || state.is_discarded() {
            return Ok(());
        }
        let done_at: i64 = cells[index("done_at")].parse().unwrap_or(0);
        let is_open = !state.is_done() || self.options.since.is_some_and(|since| done_at < micros_ago(since));
        cells[index("state")] = state.name().to_owned();
        self.progress.line().map_err(one)?;
        let Some((layout, comparison)) = &mut self.layout else { return Ok(()) };
        let line = layout.line(name, number, cells).map_err(one)?;
        let line = LedgerLine { open: is_open, partial: true, ..line };
        comparison.ours(line).map_err(|error| one(too_large(error)))
    }
}

/// Reads the provider's side and ends the comparison.
///
/// # Errors
///
/// Fails if a column is missing, or with the bad lines of the file, at most 20.
pub fn add_theirs(
    mut comparison: Comparison,
    options: &CompareOptions,
    mut theirs: InputFile,
    on_progress: OnProgress<'_>,
) -> Result<ComparisonReport, Vec<InputError>> {
    let mut progress = Progress { lines: 0, on_progress };
    let mut bad_lines = Vec::new();
    let layout = match theirs.is_blank() {
        true => Layout { key: 0, values: Vec::new(), open: None },
        false => Layout::new(&theirs.name, &theirs.columns, &options.key, comparison.columns(), None)
            .map_err(one)?,
    };
    while let Some(row) = theirs.next_row() {
        progress.line().map_err(one)?;
        match row {
            Ok(row) => {
                let line = layout.line(&theirs.name, row.number, row.cells.clone()).map_err(one)?;
                let added = comparison.theirs(line, || row.to_json(&theirs.columns));
                added.map_err(|error| one(too_large(error)))?;
            }
            Err(error) => add_bad_line(&mut bad_lines, error)?,
        }
    }
    if bad_lines.is_empty() { Ok(comparison.finish()) } else { Err(bad_lines) }
}

/// Indexes of the columns that a comparison needs.
struct Layout {
    key: usize,
    values: Vec<usize>,
    open: Option<usize>,
}

impl Layout {
    fn new(
        name: &str,
        columns: &[String],
        key: &str,
        compared: &[String],
        open: Option<&String>,
    ) -> Result<Layout, InputError> {
        let find = |wanted: &str| {
            columns.iter().position(|column| column == wanted).ok_or_else(|| {
                let known: Vec<String> = columns.iter().map(|column| format!("`{column}`")).collect();
                InputError::invalid(format!("{name}: there is no column `{wanted}`"))
                    .hint(format!("its columns are {}", known.join(", ")))
            })
        };
        Ok(Layout {
            key: find(key)?,
            values: compared.iter().map(|column| find(column)).collect::<Result<_, _>>()?,
            open: open.map(|column| find(column)).transpose()?,
        })
    }

    fn line(&self, name: &str, number: u64, mut cells: Vec<String>) -> Result<LedgerLine, InputError> {
        let open = match self.open.map(|index| cells[index].as_str()) {
            None | Some("" | "f" | "false" | "0" | "no") => false,
            Some("t" | "true" | "1" | "yes") => true,
            Some(other) => {
                return Err(bad_line(name, number, format_args!("`{other}` is neither true nor false")));
            }
        };
        let values = self.values.iter().map(|index| cells[*index].clone()).collect();
        Ok(LedgerLine { number, key: std::mem::take(&mut cells[self.key]), values, open, partial: open })
    }
}

/// Counts lines and reports them now and then.
struct Progress<'a> {
    lines: u64,
    on_progress: OnProgress<'a>,
}

impl Progress<'_> {
    fn line(&mut self) -> Result<(), InputError> {
        self.lines += 1;
        match self.lines.is_multiple_of(PROGRESS_EVERY) && (self.on_progress)(self.lines).is_break() {
            true => Err(InputError::unreadable("stopped by the caller")),
            false => Ok(()),
        }
    }
}

fn one(error: InputError) -> Vec<InputError> {
    vec![error]
}

/// Keeps a bad line. Fails after a screenful, because more would only scroll the first ones away.
fn add_bad_line(bad_lines: &mut Vec<InputError>, error: InputError) -> Result<(), Vec<InputError>> {
    let is_final = error.kind == InputErrorKind::Unreadable;
    bad_lines.push(error);
    match bad_lines.len() >= BAD_LINES_MAX || is_final {
        true => Err(std::mem::take(bad_lines)),
        false => Ok(()),
    }
}

fn too_large(error: TooLargeError) -> InputError {
    InputError::unreadable("there is too much to compare at once")
        .because(error)
        .hint("compare a shorter period: day by day finds the same differences")
}

/// Returns the instant `length` ago, in microseconds since the epoch.
fn micros_ago(length: Duration) -> i64 {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(length);
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}

/// The calls in a SQL store's outbox, in every dialect: `key`, `provider_id`, `kind`, `name`, `state` (a code), `tenant`,
/// `done_at` (microseconds). They include dead letters of a ledger, by [`DEAD_LETTER_KIND`].
pub const EFFECTS_SQL: &str = include_str!("sql/effects.sql");

/// Bad lines that are reported: about a screenful.
const BAD_LINES_MAX: usize = 20;

/// Lines between two reports: a few milliseconds. Reporting each line would cost more than reading it.
const PROGRESS_EVERY: u64 = 10_000;
