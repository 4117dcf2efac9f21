//! Output of the commands: failures with cause and hint on stderr, tables and JSON on stdout.
//!
//! Nothing here depends on colour or on the width of a terminal: a terminal and a pipe get the same bytes.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use comfy_table::{Table, presets};
use serde_json::Value;

/// Exit code of a command that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// The command ran and its result is negative.
    No = 1,
    /// A flag, a variable or the configuration is wrong.
    Usage = 2,
    /// The command was valid, but the store, the network or the disk failed.
    World = 3,
}

/// The reason why a command did not succeed, in the form in which it is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Exit code for the shell.
    pub(crate) exit: Exit,
    /// One line, lower case, values in backticks.
    pub(crate) message: String,
    /// The underlying cause, in one line.
    pub(crate) cause: Option<String>,
    /// Advice on what to do about it.
    pub(crate) hint: Option<String>,
}

impl Failure {
    /// Returns a failure for a negative result.
    pub(crate) fn no(message: impl Into<String>) -> Failure {
        Failure::new(Exit::No, message)
    }

    /// Returns a failure for a wrong flag, variable or configuration.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    /// Returns a failure of the store, the network or the disk.
    pub(crate) fn world(message: impl Into<String>) -> Failure {
        Failure::new(Exit::World, message)
    }

    fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: one_line(&message.into()), cause: None, hint: None }
    }

    /// Adds the underlying cause.
    pub(crate) fn because(mut self, cause: impl fmt::Display) -> Failure {
        self.cause = Some(one_line(&cause.to_string()));
        self
    }

    /// Adds an error and all of its sources as the cause.
    pub(crate) fn because_of(self, error: &(dyn std::error::Error + 'static)) -> Failure {
        let chain: Vec<String> =
            std::iter::successors(Some(error), |e| e.source()).map(|e| e.to_string()).collect();
        self.because(chain.join(": "))
    }

    /// Adds advice on what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error: {}", self.message)?;
        if let Some(cause) = &self.cause {
            writeln!(f, "  cause: {cause}")?;
        }
        if let Some(hint) = &self.hint {
            writeln!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

/// One or more failures. A configuration is read to its end, so that all of its errors are reported at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failures(Vec<Failure>);

impl Failures {
    /// Returns these failures, or `None` if there are none.
    pub(crate) fn some(all: Vec<Failure>) -> Option<Failures> {
        (!all.is_empty()).then_some(Failures(all))
    }

    /// Returns the exit code of the first failure.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.0.first().map_or(Exit::World, |first| first.exit) as u8)
    }

    /// Returns all failures in order.
    #[cfg(test)]
    pub(crate) fn all(&self) -> &[Failure] {
        &self.0
    }
}

impl From<Failure> for Failures {
    fn from(one: Failure) -> Failures {
        Failures(vec![one])
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, failure) in self.0.iter().enumerate() {
            let gap = if at == 0 { "" } else { "\n" };
            write!(f, "{gap}{failure}")?;
        }
        Ok(())
    }
}

/// Prints rows under their column names, without borders: columns are two spaces apart.
pub(crate) fn print_table(
    out: &mut dyn Write,
    columns: &[&str],
    rows: Vec<Vec<String>>,
) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.to_vec());
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    ignore_closed_pipe(writeln!(out, "{}", table.trim_fmt()))
}

/// Prints names and their values, one pair per line.
pub(crate) fn print_fields(out: &mut dyn Write, fields: &[(&str, String)]) -> Result<(), Failure> {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in fields {
        ignore_closed_pipe(writeln!(out, "{name:width$}  {value}"))?;
    }
    Ok(())
}

/// Prints one JSON value, indented so that people can read it too.
pub(crate) fn print_json(out: &mut dyn Write, value: &Value) -> Result<(), Failure> {
    ignore_closed_pipe(writeln!(out, "{value:#}"))
}

/// Prints one line of text.
pub(crate) fn print_line(out: &mut dyn Write, line: impl fmt::Display) -> Result<(), Failure> {
    ignore_closed_pipe(writeln!(out, "{line}"))
}

/// Ignores a closed pipe: its reader needs no more output (`ibid keys list | head`).
fn ignore_closed_pipe(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::world("cannot write the output").because(error))
        }
        _ => Ok(()),
    }
}

/// Joins the lines of a text: each part of a failure is one line, but text from elsewhere may have more.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_prints_error_cause_blank_line_and_hint() {
        let failure = Failure::world("cannot open the store at `sqlite:x.db`")
            .because("disk full\n  really")
            .hint("make room");
        assert_eq!(
            failure.to_string(),
            "error: cannot open the store at `sqlite:x.db`\n  cause: disk full really\n\nhint: make room\n"
        );
        assert_eq!(Failure::no("no such record").to_string(), "error: no such record\n");
    }

    #[test]
    fn the_first_of_several_failures_decides_the_exit_code() {
        let both = Failures::some(vec![Failure::usage("a").hint("h"), Failure::world("b")]).unwrap();
        assert_eq!(both.to_string(), "error: a\n\nhint: h\n\nerror: b\n");
        assert_eq!(format!("{:?}", both.exit_code()), format!("{:?}", ExitCode::from(2)));
        assert!(Failures::some(vec![]).is_none());
    }

    #[test]
    fn the_causes_of_an_error_stand_on_one_line() {
        let error = ibid_core::store::StoreError::transient("sqlite", "list records", "disk I/O error");
        let failure = Failure::world("cannot list").because_of(&error);
        assert_eq!(failure.cause.unwrap(), "could not list records in the sqlite store: disk I/O error");
    }

    #[test]
    fn a_table_has_no_borders_no_colour_and_no_trailing_blanks() {
        let mut out = Vec::new();
        let rows = vec![vec!["a".into(), "long value".into()], vec!["bbbb".into(), String::new()]];
        print_table(&mut out, &["id", "state"], rows).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "id    state\na     long value\nbbbb\n");
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        struct ClosedPipe;
        impl Write for ClosedPipe {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert_eq!(print_line(&mut ClosedPipe, "x"), Ok(()));
    }
}
