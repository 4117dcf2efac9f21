//! Reads both sides and feeds them to the comparison, ours first.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ibid::ledger::{Comparison, EFFECTS_SQL, LETTER_KIND, Line, Report};
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::store::rows::{EachRow, Next, RowsError};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid_core::machine::EffectState;
use indicatif::ProgressBar;

use super::Plan;
use super::table::{Table, bad_line};
use crate::config::StoreUrl;
use crate::open::{cannot_open_postgres, cannot_open_sqlite};
use crate::output::{Failure, Failures, print_line};
use crate::progress;

/// Our side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Books {
    /// In a file, or on stdin.
    File(String),
    /// The store's own calls, perhaps of one kind only.
    Effects(Option<String>),
    /// What a statement gives.
    Sql(String),
}

impl Books {
    pub(super) fn parse(text: &str) -> Result<Books, Failure> {
        match text.split_once(':') {
            Some(("sql", sql)) if sql.trim().is_empty() => {
                Err(Failure::usage("`--ours sql:` has no statement"))
            }
            Some(("sql", sql)) => Ok(Books::Sql(sql.to_owned())),
            Some(("effects", "")) => Err(Failure::usage("`--ours effects:` has no kind")),
            Some(("effects", kind)) => Ok(Books::Effects(Some(kind.to_owned()))),
            _ if text == "effects" => Ok(Books::Effects(None)),
            _ if text.is_empty() => Err(Failure::usage("`--ours` names nothing")),
            _ => Ok(Books::File(text.to_owned())),
        }
    }

    pub(super) fn is_stdin(&self) -> bool {
        *self == Books::File("-".to_owned())
    }

    pub(super) fn is_effects(&self) -> bool {
        matches!(self, Books::Effects(_))
    }

    pub(super) fn is_in_store(&self) -> bool {
        !matches!(self, Books::File(_))
    }
}

/// Compares both sides; every line that can't be read is a failure of its own.
pub(super) async fn compare(plan: &Plan, talk: &mut (dyn Write + Send)) -> Result<Report, Failures> {
    let args = &plan.args;
    let wanted = |open: Option<&String>| -> Option<Vec<String>> {
        let named = [&args.key].into_iter().chain(&args.compare).chain(open);
        (!args.compare.is_empty()).then(|| named.cloned().collect())
    };
    let mut theirs = Table::open(&args.theirs, args.format, wanted(None).as_deref())?;
    let mut side = Ours {
        plan,
        theirs: &theirs.columns,
        shape: None,
        bad: Vec::new(),
        progress: Progress::new(plan, "our lines read:"),
    };
    match &plan.books {
        Books::File(name) => {
            let mut ours = Table::open(name, args.format, wanted(args.open.as_ref()).as_deref())?;
            if !ours.is_blank() {
                side.begin(&ours.name, &ours.columns)?;
            }
            while let Some(row) = ours.next() {
                match row {
                    Ok(row) => side.take(&ours.name, row.number, row.cells)?,
                    Err(failure) => side.bad(failure)?,
                }
            }
        }
        Books::Effects(kind) => side.read_store(EFFECTS_SQL, Some(kind.as_deref())).await?,
        Books::Sql(sql) => side.read_store(sql, None).await?,
    }
    let (mut comparison, compared) = side.end()?;
    if compared.is_empty() {
        print_line(talk, "no column is compared besides the key: name some with `--compare`")?;
    }
    let mut progress = Progress::new(plan, "their lines read:");
    let mut bad = Vec::new();
    let shape = match theirs.is_blank() {
        true => Shape { key: 0, values: Vec::new(), open: None },
        false => Shape::of(&theirs.name, &theirs.columns, &args.key, &compared, None)?,
    };
    while let Some(row) = theirs.next() {
        progress.line()?;
        match row {
            Ok(row) => {
                let line = shape.line(&theirs.name, row.number, row.cells.clone())?;
                comparison.theirs(line, || row.whole(&theirs.columns)).map_err(too_large)?;
            }
            Err(failure) => one_more(&mut bad, failure)?,
        }
    }
    Failures::some(bad).map_or_else(|| Ok(comparison.end()), Err)
}

/// Our side while it is read.
struct Ours<'a> {
    plan: &'a Plan,
    /// Their columns.
    theirs: &'a [String],
    shape: Option<(Shape, Comparison, Vec<String>)>,
    bad: Vec<Failure>,
    progress: Progress<'a>,
}

impl Ours<'_> {
    /// With these columns. What is compared is known from here on.
    fn begin(&mut self, name: &str, columns: &[String]) -> Result<(), Failure> {
        let args = &self.plan.args;
        let both = |column: &&String| {
            self.theirs.contains(column) && **column != args.key && Some(*column) != args.open.as_ref()
        };
        let compared: Vec<String> = match (&args.compare[..], &self.plan.books) {
            ([], Books::Effects(_)) => {
                columns.iter().filter(|name| *name == "provider_id").filter(both).cloned().collect()
            }
            ([], _) => columns.iter().filter(both).cloned().collect(),
            (named, _) => named.to_vec(),
        };
        let shape = Shape::of(name, columns, &args.key, &compared, args.open.as_ref())?;
        self.shape = Some((shape, Comparison::new(compared.clone()), compared));
        Ok(())
    }

    fn take(&mut self, name: &str, number: u64, cells: Vec<String>) -> Result<(), Failures> {
        self.progress.line()?;
        let Some((shape, comparison, _)) = &mut self.shape else { return Ok(()) };
        match shape.line(name, number, cells) {
            Ok(line) => Ok(comparison.ours(line).map_err(too_large)?),
            Err(failure) => one_more(&mut self.bad, failure),
        }
    }

    fn bad(&mut self, failure: Failure) -> Result<(), Failures> {
        one_more(&mut self.bad, failure)
    }

    /// From the store: what a statement gives. Effects know themselves what is open.
    async fn read_store(&mut self, sql: &str, effects: Option<Option<&str>>) -> Result<(), Failures> {
        let name = if effects.is_some() { "`--ours effects`" } else { "`--ours sql:`" };
        let (mut number, mut failed, plan) = (0, None, self.plan);
        let mut each = |columns: &[String], cells: Vec<Option<String>>| {
            let cells: Vec<String> = cells.into_iter().map(Option::unwrap_or_default).collect();
            number += 1;
            let taken = match effects {
                Some(kind) => self.effect(name, number, kind, columns, cells),
                None => self.row(name, number, columns, cells),
            };
            match taken {
                Ok(()) => Next::More,
                Err(failures) => {
                    failed = Some(failures);
                    Next::Stop
                }
            }
        };
        let columns = match &plan.store {
            Some(url) => read(url, sql, &mut each).await?,
            None => Vec::new(),
        };
        if let Some(failures) = failed {
            return Err(failures);
        }
        match self.shape.is_none() {
            true => Ok(self.begin(name, &columns)?),
            false => Ok(()),
        }
    }

    fn row(
        &mut self,
        name: &str,
        number: u64,
        columns: &[String],
        cells: Vec<String>,
    ) -> Result<(), Failures> {
        if self.shape.is_none() {
            self.begin(name, columns)?;
        }
        self.take(name, number, cells)
    }

    /// A call of ours: done, or open. Discarded ones and letters are not among what we have.
    fn effect(
        &mut self,
        name: &str,
        number: u64,
        kind: Option<&str>,
        columns: &[String],
        mut cells: Vec<String>,
    ) -> Result<(), Failures> {
        if self.shape.is_none() {
            self.begin(name, columns)?;
        }
        let at = |wanted: &str| columns.iter().position(|column| column == wanted).unwrap_or_default();
        let own_kind = &cells[at("kind")];
        let code = cells[at("state")].parse().ok().and_then(EffectState::from_code);
        let Some(state) = code else {
            return one_more(&mut self.bad, bad_line(name, number, "a state that this ibid does not know"));
        };
        if own_kind == LETTER_KIND
            || kind.is_some_and(|kind| kind != own_kind)
            || state == EffectState::Discarded
        {
            return Ok(());
        }
        let done_at: i64 = cells[at("done_at")].parse().unwrap_or(0);
        let is_open =
            state != EffectState::Done || self.plan.args.since.is_some_and(|since| done_at < before(since));
        cells[at("state")] = state.name().to_owned();
        self.progress.line()?;
        let Some((shape, comparison, _)) = &mut self.shape else { return Ok(()) };
        let line = shape.line(name, number, cells)?;
        Ok(comparison.ours(Line { open: is_open, partial: true, ..line }).map_err(too_large)?)
    }

    fn end(self) -> Result<(Comparison, Vec<String>), Failures> {
        match Failures::some(self.bad) {
            Some(failures) => Err(failures),
            // A side without a line has nothing to compare.
            None => Ok(self.shape.map_or_else(
                || (Comparison::new(Vec::new()), Vec::new()),
                |(_, comparison, compared)| (comparison, compared),
            )),
        }
    }
}

/// Where in a row things stand.
struct Shape {
    key: usize,
    values: Vec<usize>,
    open: Option<usize>,
}

impl Shape {
    fn of(
        name: &str,
        columns: &[String],
        key: &str,
        compared: &[String],
        open: Option<&String>,
    ) -> Result<Shape, Failure> {
        let find = |wanted: &str| {
            columns.iter().position(|column| column == wanted).ok_or_else(|| {
                let known: Vec<String> = columns.iter().map(|column| format!("`{column}`")).collect();
                Failure::usage(format!("{name}: there is no column `{wanted}`"))
                    .hint(format!("its columns are {}", known.join(", ")))
            })
        };
        Ok(Shape {
            key: find(key)?,
            values: compared.iter().map(|column| find(column)).collect::<Result<_, _>>()?,
            open: open.map(|column| find(column)).transpose()?,
        })
    }

    fn line(&self, name: &str, number: u64, mut cells: Vec<String>) -> Result<Line, Failure> {
        let open = match self.open.map(|at| cells[at].as_str()) {
            None | Some("" | "f" | "false" | "0" | "no") => false,
            Some("t" | "true" | "1" | "yes") => true,
            Some(other) => {
                return Err(bad_line(name, number, format_args!("`{other}` is neither true nor false")));
            }
        };
        let values = self.values.iter().map(|at| cells[*at].clone()).collect();
        Ok(Line { number, key: std::mem::take(&mut cells[self.key]), values, open, partial: open })
    }
}

async fn read(url: &StoreUrl, sql: &str, each: EachRow<'_>) -> Result<Vec<String>, Failure> {
    match url {
        // Refused when the plan was made.
        StoreUrl::Memory => Ok(Vec::new()),
        StoreUrl::Sqlite(path) => SqliteStore::read_rows(path, SqliteOptions::default(), sql, each)
            .map_err(|error| unread(error, |error| cannot_open_sqlite(url, error))),
        StoreUrl::Postgres(address) => {
            let read =
                PostgresStore::read_rows(address.reveal(), PostgresOptions::default(), sql, each).await;
            read.map_err(|error| unread(error, |error| cannot_open_postgres(url, error)))
        }
    }
}

fn unread<O: std::error::Error + 'static>(error: RowsError<O>, open: impl FnOnce(&O) -> Failure) -> Failure {
    match error {
        RowsError::Open(error) => open(&error),
        RowsError::Refused(why) => Failure::usage("the statement of `--ours` is refused")
            .because(why)
            .hint("it must be one `select` that writes nothing"),
        RowsError::Failed(error) => Failure::world("cannot read our side").because_of(&*error),
    }
}

/// Keeps a bad line; past a screenful the rest would only scroll the first away.
fn one_more(bad: &mut Vec<Failure>, failure: Failure) -> Result<(), Failures> {
    let is_world = failure.exit == crate::output::Exit::World;
    bad.push(failure);
    if bad.len() >= BAD_LINES_MAX || is_world {
        return Failures::some(std::mem::take(bad)).map_or(Ok(()), Err);
    }
    Ok(())
}

fn too_large(error: ibid::ledger::TooLarge) -> Failure {
    Failure::world("there is too much to compare at once")
        .because(error)
        .hint("compare a shorter period: day by day the same is found")
}

/// So long ago, in microseconds since the epoch.
fn before(length: Duration) -> i64 {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(length);
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}

/// Shows how far it is, and listens for the end.
struct Progress<'a> {
    plan: &'a Plan,
    lines: u64,
    bar: ProgressBar,
}

impl<'a> Progress<'a> {
    fn new(plan: &'a Plan, side: &'static str) -> Progress<'a> {
        let bar = progress::bar(None, plan.args.json);
        bar.set_message(side);
        Progress { plan, lines: 0, bar }
    }

    fn line(&mut self) -> Result<(), Failure> {
        self.lines += 1;
        if !self.lines.is_multiple_of(LOOK_EVERY) {
            return Ok(());
        }
        if self.plan.stopped.load(Ordering::Relaxed) {
            return Err(Failure::world("told to stop"));
        }
        self.bar.set_position(self.lines);
        Ok(())
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A screenful of lines that can't be read.
const BAD_LINES_MAX: usize = 20;

/// Some milliseconds' worth of lines: looking at the clock for each would cost more than the line.
const LOOK_EVERY: u64 = 10_000;
