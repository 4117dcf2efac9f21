//! `ibid copy`: takes everything from one store to another, once and for all, or cancels that.

use std::io::Write;

use ibid::copy::{self, CopiedPart, CopyEnd, CopyError, CopyReport, CopyStep};
use ibid::identity::change::{self, RetireWait};
use ibid::identity::{CopyMark, CopyRole, IdentityError, TargetPhase};
use ibid_core::store::Store;
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};

use crate::args::copy::CopyArgs;
use crate::config::StoreUrl;
use crate::config::units::show_duration;
use crate::open_store::open_store;
use crate::output::{Failure, print_fields, print_json, print_line};
use crate::progress;

/// Copies a store, or cancels a copy.
pub(crate) async fn run(args: &CopyArgs, out: &mut dyn Write, talk: &mut dyn Write) -> Result<(), Failure> {
    let source = open("--from", &args.from, false).await?;
    let target = open("--to", &args.to, !args.cancel).await?;
    if args.cancel {
        copy::cancel(&source, &target).await.map_err(copy_failure)?;
        return match args.json {
            true => print_json(out, &json!({ "cancelled": true })),
            false => print_line(out, format_args!("cancelled: `{}` is open again", source.display_url)),
        };
    }
    let mut watcher = Watcher { talk, bar: progress::bar(None, args.json), last: None };
    let report = copy::copy(&source, &target, |step| watcher.show(step)).await.map_err(copy_failure)?;
    watcher.bar.finish_and_clear();
    print_report(&report, &target, args.json, out)
}

async fn open(flag: &str, url: &str, create: bool) -> Result<CopyEnd, Failure> {
    let url = StoreUrl::parse(url).map_err(|failure| {
        let message = format!("`{flag}` {}", failure.message);
        Failure { message, ..failure }
    })?;
    if url == StoreUrl::Memory {
        return Err(Failure::usage(format!(
            "`{flag}` names a store in memory, which ends with this command"
        )));
    }
    Ok(CopyEnd::new(open_store(&url, create).await?, url.to_string()))
}

/// Prints each stage of a copy as it begins, and shows the rows of the present one on a terminal.
struct Watcher<'a> {
    talk: &'a mut dyn Write,
    bar: ProgressBar,
    last: Option<String>,
}

impl Watcher<'_> {
    fn show(&mut self, step: CopyStep) {
        let (line, rows) = match step {
            CopyStep::Checked { part, rows } => (format!("checking {part}"), rows),
            CopyStep::Closing(RetireWait::ForReaders(wait)) => (
                format!("closing the source: waiting {} for running nodes to read it", show_duration(wait)),
                0,
            ),
            CopyStep::Closing(RetireWait::ForTransactions) => {
                ("closing the source: waiting for open transactions".to_owned(), 0)
            }
            CopyStep::Running { .. } => ("waiting for running requests to end or lapse".to_owned(), 0),
            CopyStep::Copied { part, rows } => (format!("copying {part}"), rows),
            CopyStep::Compared { part, rows } => (format!("comparing {part}"), rows),
            _ => return,
        };
        if self.last.as_ref() != Some(&line) {
            // A reader that closed the pipe needs no more output.
            self.bar.suspend(|| drop(writeln!(self.talk, "{line}")));
            self.bar.set_message(line.clone());
            self.last = Some(line);
        }
        self.bar.set_position(rows);
    }
}

fn print_report(
    report: &CopyReport,
    target: &CopyEnd,
    as_json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if as_json {
        let rows = report.rows.iter().map(|(part, rows)| (json_name(*part).to_owned(), json!(rows)));
        let mut value: Map<String, Value> = rows.collect();
        value.insert("left_behind".to_owned(), json!(report.left_behind));
        value.insert("clock_shift_us".to_owned(), json!(report.shift_us));
        value.insert("was_open".to_owned(), json!(report.was_open));
        return print_json(out, &Value::Object(value));
    }
    let mut fields: Vec<(&str, String)> =
        report.rows.iter().map(|(part, rows)| (part.name(), rows.to_string())).collect();
    fields.push(("left behind, which the target can't hold", report.left_behind.to_string()));
    fields.push(("clock of the target, ahead by", format!("{} µs", report.shift_us)));
    print_fields(out, &fields)?;
    print_line(out, format_args!("`{}` is open: start the nodes on it", target.display_url))
}

fn json_name(part: CopiedPart) -> &'static str {
    match part {
        CopiedPart::Evidence => "evidence",
        other => other.name(),
    }
}

/// Refuses a command that writes to a store that a copy keeps closed.
pub(crate) async fn check_open(store: &dyn Store) -> Result<(), Failure> {
    let stored = change::load_setting(store).await;
    let checked = stored.and_then(|setting| setting.map_or(Ok(()), |setting| setting.check_open()));
    checked.map_err(|error| match error {
        IdentityError::Closed(mark) => explain_closed(&mark),
        other => Failure::world("cannot read the identity of this store").because_of(&other),
    })
}

/// Explains why a store may not be used, with advice.
pub(crate) fn explain_closed(mark: &CopyMark) -> Failure {
    let hint = match &mark.role {
        CopyRole::Source { to, moved: true, .. } => format!("use `{to}`"),
        CopyRole::Source { .. } => {
            "wait until `ibid copy` has ended; if it was stopped, run it again, or with `--cancel`".to_owned()
        }
        CopyRole::Target { phase: TargetPhase::Cancelled, .. } => {
            "use the source of that copy, or an empty store".to_owned()
        }
        CopyRole::Target { .. } => {
            "wait until `ibid copy` has ended; if it was stopped, run it again".to_owned()
        }
    };
    Failure::no("a copy keeps this store closed").because(mark).hint(hint)
}

fn copy_failure(error: CopyError) -> Failure {
    match error {
        CopyError::Store(error) if error.is_transient() => {
            Failure::world("a store failed").because_of(&error).hint(GO_ON)
        }
        CopyError::Store(error) => Failure::world("a store can't be copied").because_of(&error).hint(REMOVE_CAUSE),
        CopyError::Identity(error) => Failure::world("the identity of a store can't be read")
            .because_of(&error)
            .hint("use the ibid that wrote it, or a newer one"),
        CopyError::TargetUsed | CopyError::TargetBusy(_) => {
            Failure::no("cannot copy").because(error).hint("give it an empty store with `--to`")
        }
        CopyError::OtherTarget(_) => {
            Failure::no("cannot go on with the copy").because(error).hint("name that target with `--to`")
        }
        CopyError::AnotherProcess => {
            Failure::no("cannot go on with the copy").because(error).hint("wait for it; it ends the copy")
        }
        CopyError::Unsupported { .. } => Failure::no("cannot copy").because(error).hint(
            "let them end on the source first, or choose another kind of store; `--cancel` opens the source again if it \
             is closed",
        ),
        CopyError::Differs { .. } | CopyError::ClockMoved { .. } => Failure::no("the target was not opened")
            .because(error)
            .hint("open the source again with `--cancel`, and copy into an empty store"),
        CopyError::ClockUnsure => Failure::world("cannot compare the clocks").because(error).hint(GO_ON),
        CopyError::SourceUnused | CopyError::SourceBusy(_) => Failure::no("cannot copy").because(error),
        other => Failure::no(other.to_string()),
    }
}

const REMOVE_CAUSE: &str = "remove the cause and run it again; `ibid identity show` says whether the source is closed, and `--cancel` opens it again";

const GO_ON: &str =
    "run it again: it continues where it stopped; or open the source again with `--cancel`, if it is closed";
