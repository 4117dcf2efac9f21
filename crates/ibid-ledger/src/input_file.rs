//! Reads a ledger from a CSV or JSON-lines file, line by line. A bad line is an error that names its number.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::json_line::JsonLine;

/// An open file whose header has been read.
pub struct InputFile {
    /// Name of the file in messages.
    pub name: String,
    /// Column names; for JSON lines, the fields of the first line or those that the caller asked for.
    pub columns: Vec<String>,
    rows: Reader,
}

/// One line of a file.
pub struct InputRow {
    /// Line number, from 1.
    pub number: u64,
    /// Values, in the order of the columns.
    pub cells: Vec<String>,
    /// The JSON line, which may have more fields than there are columns.
    json: Option<JsonLine>,
}

impl fmt::Debug for InputFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InputFile")
            .field("name", &self.name)
            .field("columns", &self.columns)
            .finish_non_exhaustive()
    }
}

/// Omits the values, which are customers' payments.
impl fmt::Debug for InputRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InputRow").field("number", &self.number).finish_non_exhaustive()
    }
}

enum Reader {
    Csv { reader: Box<csv::Reader<BoundedReader>>, bytes_read: Rc<Cell<u64>> },
    Json { reader: BufReader<Box<dyn Read>>, number: u64, first: Option<(u64, JsonLine)>, strict: bool },
}

impl InputFile {
    /// Opens the file `name`, or stdin for `-`.
    ///
    /// `wanted` names the columns to read. Without it all columns are read, and every JSON line must have the fields of
    /// the first line.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, its format is unknown, or two columns have the same name.
    pub fn open(
        name: &str,
        format: Option<InputFormat>,
        wanted: Option<&[String]>,
    ) -> Result<InputFile, InputError> {
        let format = format.or_else(|| by_ending(name)).ok_or_else(|| {
            InputError::invalid(format!("`{name}` does not say what it is"))
                .hint("add `--format csv` or `--format jsonl`")
        })?;
        let (input, name): (Box<dyn Read>, _) = match name {
            "-" => (Box::new(io::stdin()), "stdin".to_owned()),
            path => (Box::new(File::open(path).map_err(|error| unreadable(path, &error))?), path.to_owned()),
        };
        let table = match format {
            InputFormat::Csv => InputFile::csv(input, name)?,
            InputFormat::JsonLines => InputFile::json(input, name, wanted)?,
        };
        let mut names = HashSet::new();
        match table.columns.iter().find(|column| !names.insert(column.as_str())) {
            Some(twice) => {
                Err(InputError::invalid(format!("{}: two columns are called `{twice}`", table.name)))
            }
            None => Ok(table),
        }
    }

    fn csv(input: Box<dyn Read>, name: String) -> Result<InputFile, InputError> {
        let bytes_read = Rc::new(Cell::new(0));
        let bounded = BoundedReader { input, bytes_read: Rc::clone(&bytes_read) };
        let mut reader = Box::new(csv::ReaderBuilder::new().from_reader(bounded));
        let header = reader.headers().map_err(|error| bad_csv(&name, &error))?;
        let columns: Vec<String> = header.iter().map(str::to_owned).collect();
        if columns.is_empty() {
            return Err(InputError::invalid(format!("{name}: there is no header"))
                .hint("the first line names the columns"));
        }
        Ok(InputFile { name, columns, rows: Reader::Csv { reader, bytes_read } })
    }

    fn json(input: Box<dyn Read>, name: String, wanted: Option<&[String]>) -> Result<InputFile, InputError> {
        let (mut reader, mut number) = (BufReader::new(input), 0);
        let first = next_json_line(&mut reader, &mut number, &name).transpose()?;
        let columns = match (wanted, &first) {
            (Some(wanted), _) => wanted.to_vec(),
            (None, Some((_, fields))) => fields.names().map(str::to_owned).collect(),
            (None, None) => Vec::new(),
        };
        let strict = wanted.is_none();
        Ok(InputFile { name, columns, rows: Reader::Json { reader, number, first, strict } })
    }

    /// Returns whether the columns are unknown: JSON lines without a line.
    pub fn is_blank(&self) -> bool {
        matches!(&self.rows, Reader::Json { first: None, number: _, .. }) && self.columns.is_empty()
    }

    /// Reads the next line; `None` at the end of the file. After a bad line the caller may continue with the next one.
    ///
    /// # Errors
    ///
    /// Fails if the line is no record of the columns that were asked for, or if the file can't be read. A retry of the same
    /// line is not possible.
    pub fn next_row(&mut self) -> Option<Result<InputRow, InputError>> {
        let InputFile { name, columns, rows } = self;
        match rows {
            Reader::Csv { reader, bytes_read } => {
                bytes_read.set(0);
                let mut record = csv::StringRecord::new();
                match reader.read_record(&mut record) {
                    Ok(false) => None,
                    Ok(true) => {
                        let within: usize = record.iter().map(|cell| cell.matches('\n').count()).sum();
                        // A record's position is that of the blank lines before it, so count from its end.
                        let from_end = reader.position().line().saturating_sub(1 + within as u64);
                        let number = record.position().map_or(0, csv::Position::line).max(from_end);
                        let cells = record.iter().map(str::to_owned).collect();
                        Some(Ok(InputRow { number, cells, json: None }))
                    }
                    Err(error) => Some(Err(bad_csv(name, &error))),
                }
            }
            Reader::Json { reader, number, first, strict } => {
                let next = first.take().map(Ok).or_else(|| next_json_line(reader, number, name))?;
                Some(next.and_then(|(number, fields)| json_row(name, columns, *strict, number, fields)))
            }
        }
    }
}

impl InputRow {
    /// Writes the complete line as one JSON object.
    pub fn to_json(&self, columns: &[String]) -> String {
        match &self.json {
            Some(fields) => fields.to_json(),
            None => {
                let cells = columns.iter().cloned().zip(self.cells.iter().cloned().map(Value::from));
                Value::Object(cells.collect::<Map<_, _>>()).to_string()
            }
        }
    }
}

/// Format of an input file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InputFormat {
    /// Comma-separated values; the first line names the columns.
    Csv,
    /// One JSON object per line.
    JsonLines,
}

/// An input that cannot be compared.
///
/// Hints name the options of `ibid reconcile ledger`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InputError {
    /// Tells wrong input from input that could not be read.
    pub kind: InputErrorKind,
    /// Description of the problem.
    pub message: String,
    /// The underlying error, as text.
    pub cause: Option<String>,
    /// Advice for the user, if there is any.
    pub hint: Option<String>,
}

/// Kind of an [`InputError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a tool gives each kind an exit code")]
pub enum InputErrorKind {
    /// The input or the options are wrong.
    Invalid,
    /// Reading failed, was stopped, or needs too much memory. More input will not help.
    Unreadable,
}

impl InputError {
    pub(crate) fn invalid(message: impl Into<String>) -> InputError {
        InputError { kind: InputErrorKind::Invalid, message: message.into(), cause: None, hint: None }
    }

    pub(crate) fn unreadable(message: impl Into<String>) -> InputError {
        InputError { kind: InputErrorKind::Unreadable, ..InputError::invalid(message) }
    }

    pub(crate) fn because(mut self, cause: impl std::fmt::Display) -> InputError {
        self.cause = Some(cause.to_string());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> InputError {
        self.hint = Some(hint.into());
        self
    }
}

fn json_row(
    name: &str,
    columns: &[String],
    strict: bool,
    number: u64,
    fields: JsonLine,
) -> Result<InputRow, InputError> {
    let mut cells = Vec::with_capacity(columns.len());
    for column in columns {
        let Some(cell) = fields.get(column) else {
            return Err(bad_line(name, number, format_args!("there is no field `{column}`")));
        };
        cells.push(cell.to_owned());
    }
    if strict && let Some(other) = fields.names().find(|field| !columns.iter().any(|column| column == field))
    {
        let failure = bad_line(name, number, format_args!("the first line has no field `{other}`"));
        return Err(failure.hint("say which columns count with `--compare`"));
    }
    Ok(InputRow { number, cells, json: Some(fields) })
}

/// Reads the next line that is not blank.
fn next_json_line(
    reader: &mut impl BufRead,
    number: &mut u64,
    name: &str,
) -> Option<Result<(u64, JsonLine), InputError>> {
    loop {
        let mut line = Vec::new();
        *number += 1;
        match reader.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line) {
            Ok(0) => return None,
            Ok(_) if line.len() as u64 > LINE_BYTES_MAX => {
                return Some(Err(bad_line(name, *number, "the line is longer than 1 MiB")));
            }
            Ok(_) if line.trim_ascii().is_empty() => {}
            Ok(_) => {
                let fields = JsonLine::parse(&line).map_err(|why| bad_line(name, *number, why));
                return Some(fields.map(|fields| (*number, fields)));
            }
            Err(error) => return Some(Err(unreadable(name, &error))),
        }
    }
}

pub(crate) fn bad_line(name: &str, number: u64, why: impl std::fmt::Display) -> InputError {
    InputError::invalid(format!("{name}, line {number}: {why}"))
}

fn bad_csv(name: &str, error: &csv::Error) -> InputError {
    let number = error.position().map_or(1, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            bad_line(name, number, "the line is longer than 1 MiB")
        }
        csv::ErrorKind::Io(error) => unreadable(name, error),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            bad_line(name, number, format_args!("{len} cells, and the header has {expected_len}"))
        }
        csv::ErrorKind::Utf8 { .. } => bad_line(name, number, "it is not UTF-8"),
        _ => bad_line(name, number, error),
    }
}

fn unreadable(name: &str, error: &io::Error) -> InputError {
    InputError::unreadable(format!("cannot read `{name}`")).because(error)
}

fn by_ending(name: &str) -> Option<InputFormat> {
    let ending = Path::new(name).extension()?.to_str()?.to_ascii_lowercase();
    match ending.as_str() {
        "csv" => Some(InputFormat::Csv),
        "jsonl" | "ndjson" => Some(InputFormat::JsonLines),
        _ => None,
    }
}

/// Fails when a single line needs more than [`LINE_BYTES_MAX`], read-ahead included.
struct BoundedReader {
    input: Box<dyn Read>,
    bytes_read: Rc<Cell<u64>>,
}

impl Read for BoundedReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.bytes_read.get() > LINE_BYTES_MAX {
            // Most likely a quote that is never closed.
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let read = self.input.read(into)?;
        self.bytes_read.set(self.bytes_read.get() + read as u64);
        Ok(read)
    }
}

/// Longest line. A charge has a few hundred bytes, or a few kilobytes with all its metadata.
const LINE_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests;
