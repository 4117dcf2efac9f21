//! Books in a file: CSV or JSON lines, read line by line. A line that can't be read is an error by its number.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::args::Format;
use super::fields::Fields;
use crate::output::Failure;

/// An open file, its header read.
pub(super) struct Table {
    /// How messages call it.
    pub(super) name: String,
    /// The names of its columns; of JSON lines, those of the first.
    pub(super) columns: Vec<String>,
    rows: Rows,
}

/// One line of a file.
pub(super) struct Row {
    pub(super) number: u64,
    /// By column.
    pub(super) cells: Vec<String>,
    /// The fields of a JSON line, which may have more than there are columns.
    fields: Option<Fields>,
}

enum Rows {
    Csv { reader: Box<csv::Reader<Bounded>>, taken: Rc<Cell<u64>> },
    Json { reader: BufReader<Box<dyn Read>>, number: u64, first: Option<(u64, Fields)>, strict: bool },
}

impl Table {
    /// Opens what `name` names. `wanted` are the columns that are asked for by name; none: all of them count, and then
    /// every JSON line must have the fields of the first.
    pub(super) fn open(
        name: &str,
        format: Option<Format>,
        wanted: Option<&[String]>,
    ) -> Result<Table, Failure> {
        let format = format.or_else(|| by_ending(name)).ok_or_else(|| {
            Failure::usage(format!("`{name}` does not say what it is"))
                .hint("add `--format csv` or `--format jsonl`")
        })?;
        let (input, name): (Box<dyn Read>, _) = match name {
            "-" => (Box::new(io::stdin()), "stdin".to_owned()),
            path => (Box::new(File::open(path).map_err(|error| unreadable(path, &error))?), path.to_owned()),
        };
        let table = match format {
            Format::Csv => Table::csv(input, name)?,
            Format::Jsonl => Table::json(input, name, wanted)?,
        };
        let mut seen = HashSet::new();
        match table.columns.iter().find(|column| !seen.insert(column.as_str())) {
            Some(twice) => Err(Failure::usage(format!("{}: two columns are called `{twice}`", table.name))),
            None => Ok(table),
        }
    }

    fn csv(input: Box<dyn Read>, name: String) -> Result<Table, Failure> {
        let taken = Rc::new(Cell::new(0));
        let bounded = Bounded { input, taken: Rc::clone(&taken) };
        let mut reader = Box::new(csv::ReaderBuilder::new().from_reader(bounded));
        let header = reader.headers().map_err(|error| bad_csv(&name, &error))?;
        let columns: Vec<String> = header.iter().map(str::to_owned).collect();
        if columns.is_empty() {
            return Err(Failure::usage(format!("{name}: there is no header"))
                .hint("the first line names the columns"));
        }
        Ok(Table { name, columns, rows: Rows::Csv { reader, taken } })
    }

    fn json(input: Box<dyn Read>, name: String, wanted: Option<&[String]>) -> Result<Table, Failure> {
        let (mut reader, mut number) = (BufReader::new(input), 0);
        let first = next_fields(&mut reader, &mut number, &name).transpose()?;
        let columns = match (wanted, &first) {
            (Some(wanted), _) => wanted.to_vec(),
            (None, Some((_, fields))) => fields.names().map(str::to_owned).collect(),
            (None, None) => Vec::new(),
        };
        let strict = wanted.is_none();
        Ok(Table { name, columns, rows: Rows::Json { reader, number, first, strict } })
    }

    /// Whether nothing can be said about its columns: JSON lines without a line.
    pub(super) fn is_blank(&self) -> bool {
        matches!(&self.rows, Rows::Json { first: None, number: _, .. }) && self.columns.is_empty()
    }

    /// The next line; a line that can't be read is a failure, and reading may go on after it.
    pub(super) fn next(&mut self) -> Option<Result<Row, Failure>> {
        let Table { name, columns, rows } = self;
        match rows {
            Rows::Csv { reader, taken } => {
                taken.set(0);
                let mut record = csv::StringRecord::new();
                match reader.read_record(&mut record) {
                    Ok(false) => None,
                    Ok(true) => {
                        let within: usize = record.iter().map(|cell| cell.matches('\n').count()).sum();
                        // A record's place is that of the blank lines before it, so it is counted from its end.
                        let from_end = reader.position().line().saturating_sub(1 + within as u64);
                        let number = record.position().map_or(0, csv::Position::line).max(from_end);
                        let cells = record.iter().map(str::to_owned).collect();
                        Some(Ok(Row { number, cells, fields: None }))
                    }
                    Err(error) => Some(Err(bad_csv(name, &error))),
                }
            }
            Rows::Json { reader, number, first, strict } => {
                let next = first.take().map(Ok).or_else(|| next_fields(reader, number, name))?;
                Some(next.and_then(|(number, fields)| json_row(name, columns, *strict, number, fields)))
            }
        }
    }
}

impl Row {
    /// All of it, as one JSON object.
    pub(super) fn whole(&self, columns: &[String]) -> String {
        match &self.fields {
            Some(fields) => fields.whole(),
            None => {
                let cells = columns.iter().cloned().zip(self.cells.iter().cloned().map(Value::from));
                Value::Object(cells.collect::<Map<_, _>>()).to_string()
            }
        }
    }
}

fn json_row(
    name: &str,
    columns: &[String],
    strict: bool,
    number: u64,
    fields: Fields,
) -> Result<Row, Failure> {
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
    Ok(Row { number, cells, fields: Some(fields) })
}

/// The next line that is not blank.
fn next_fields(
    reader: &mut impl BufRead,
    number: &mut u64,
    name: &str,
) -> Option<Result<(u64, Fields), Failure>> {
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
                let fields = Fields::parse(&line).map_err(|why| bad_line(name, *number, why));
                return Some(fields.map(|fields| (*number, fields)));
            }
            Err(error) => return Some(Err(unreadable(name, &error))),
        }
    }
}

pub(super) fn bad_line(name: &str, number: u64, why: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("{name}, line {number}: {why}"))
}

fn bad_csv(name: &str, error: &csv::Error) -> Failure {
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

fn unreadable(name: &str, error: &io::Error) -> Failure {
    Failure::world(format!("cannot read `{name}`")).because(error)
}

fn by_ending(name: &str) -> Option<Format> {
    let ending = Path::new(name).extension()?.to_str()?.to_ascii_lowercase();
    match ending.as_str() {
        "csv" => Some(Format::Csv),
        "jsonl" | "ndjson" => Some(Format::Jsonl),
        _ => None,
    }
}

/// A reader that gives no more than one line may take, and what is read ahead of it.
struct Bounded {
    input: Box<dyn Read>,
    taken: Rc<Cell<u64>>,
}

impl Read for Bounded {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.taken.get() > LINE_BYTES_MAX {
            // A quote that is never closed, most likely.
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let read = self.input.read(into)?;
        self.taken.set(self.taken.get() + read as u64);
        Ok(read)
    }
}

/// A charge has some hundred bytes, with all its metadata some kilobytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests;
