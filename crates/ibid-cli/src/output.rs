//! What the terminal sees: failures with cause and hint on stderr, tables and JSON on stdout.
//!
//! Nothing here depends on colour or on the width of a terminal: the same bytes go to a person and to a pipe.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use comfy_table::{Table, presets};
use serde_json::Value;

/// How a command ended, for the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// It was asked and the answer is no.
    No = 1,
    /// It was asked wrongly: a flag, a variable or the configuration.
    Usage = 2,
    /// The question was good and the world failed: the store, the network, the disk.
    World = 3,
}

/// Why a command did not do what it was asked, in the form in which it is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// What the shell is told.
    pub(crate) exit: Exit,
    /// One line, lower case, values in backticks.
    pub(crate) message: String,
    /// What lies beneath, one line.
    pub(crate) cause: Option<String>,
    /// What to do about it.
    pub(crate) hint: Option<String>,
}

impl Failure {
    /// The answer is no.
    pub(crate) fn no(message: impl Into<String>) -> Failure {
        Failure::new(Exit::No, message)
    }

    /// Asked wrongly.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    /// The world failed.
    pub(crate) fn world(message: impl Into<String>) -> Failure {
        Failure::new(Exit::World, message)
    }

    fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: one_line(&message.into()), cause: None, hint: None }
    }

    /// With what lies beneath.
    pub(crate) fn because(mut self, cause: impl fmt::Display) -> Failure {
        self.cause = Some(one_line(&cause.to_string()));
        self
    }

    /// With an error and all that lies beneath it.
    pub(crate) fn because_of(self, error: &(dyn std::error::Error + 'static)) -> Failure {
        let chain: Vec<String> =
            std::iter::successors(Some(error), |e| e.source()).map(|e| e.to_string()).collect();
        self.because(chain.join(": "))
    }

    /// With what to do about it.
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

/// One failure or more: a configuration is read to its end, so that it need not be mended error by error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failures(Vec<Failure>);

impl Failures {
    /// These failures; none if there are none.
    pub(crate) fn some(all: Vec<Failure>) -> Option<Failures> {
        (!all.is_empty()).then_some(Failures(all))
    }

    /// What the shell is told: the first failure's word.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.0.first().map_or(Exit::World, |first| first.exit) as u8)
    }

    /// Every one of them, in order.
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
    written(writeln!(out, "{}", table.trim_fmt()))
}

/// Prints names and their values, one pair a line.
pub(crate) fn print_fields(out: &mut dyn Write, fields: &[(&str, String)]) -> Result<(), Failure> {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in fields {
        written(writeln!(out, "{name:width$}  {value}"))?;
    }
    Ok(())
}

/// Prints one JSON value, indented: a person may look too.
pub(crate) fn print_json(out: &mut dyn Write, value: &Value) -> Result<(), Failure> {
    written(writeln!(out, "{value:#}"))
}

/// Prints one line.
pub(crate) fn print_line(out: &mut dyn Write, line: impl fmt::Display) -> Result<(), Failure> {
    written(writeln!(out, "{line}"))
}

/// A reader that closed the pipe has seen enough (`ibid keys list | head`): that is no failure of ours.
fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::world("cannot write the output").because(error))
        }
        _ => Ok(()),
    }
}

/// The form has one line per part; what came from elsewhere may have more.
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
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert_eq!(print_line(&mut Closed, "x"), Ok(()));
    }
}
