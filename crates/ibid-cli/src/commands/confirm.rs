//! What the operator's acts have in common: who, why, and whether it is meant.

use std::io::Write;
use std::os::unix::fs::MetadataExt;

use ibid::operator::{OperatorAction, OperatorActionError, OperatorError};
use ibid_core::store::StoreError;

use super::keys::print_records;
use crate::args::operator::ActArgs;
use crate::output::Failure;

/// Who acts and why.
pub(super) fn act(args: &ActArgs) -> Result<OperatorAction, Failure> {
    let who = args.who.clone().or_else(user).unwrap_or_default();
    OperatorAction::new(&who, &args.reason).map_err(|error| {
        let hint = match error {
            OperatorActionError::Who => "say who you are with `--who`",
            OperatorActionError::Reason => "say why with `--reason`, for whoever reads the history",
        };
        Failure::usage(error.to_string()).hint(hint)
    })
}

/// The user that runs the command: by name, or in a container, where nobody says it, by number.
fn user() -> Option<String> {
    let named = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let numbered = || Some(format!("uid {}", std::fs::metadata("/proc/self").ok()?.uid()));
    named.filter(|name| !name.is_empty()).or_else(numbered)
}

/// Nothing is done without `--yes`.
pub(super) fn meant() -> Failure {
    Failure::no("nothing was done yet").hint("if that is right, say it again with `--yes`")
}

/// Turns the error of an action on the record `id` into the command's failure.
pub(super) fn refused(error: OperatorError, id: &str, out: &mut dyn Write) -> Failure {
    match error {
        OperatorError::NoSuchRecord => Failure::no(format!("no record begins with `{id}`"))
            .hint("expired records are removed; `ibid keys list` shows what is there"),
        OperatorError::Ambiguous(page) => {
            let more = if page.next.is_some() { "more than " } else { "" };
            let message = format!("{more}{} records begin with `{id}`", page.records.len());
            if let Err(failure) = print_records(&page.records, out) {
                return failure;
            }
            Failure::no(message).hint("give more digits: `ibid keys list --json` has ids in full")
        }
        OperatorError::NotNow { .. } | OperatorError::Changed { .. } => Failure::no(error.to_string()).hint(
            "an unknown record is resolved, a completed or expired one forgotten, what runs is left alone",
        ),
        OperatorError::TooLarge { .. } => Failure::usage(error.to_string()).hint("give a smaller `--body`"),
        error => not_done(error),
    }
}

/// Turns the error of an action on an effect into the command's failure.
pub(super) fn not_done(error: OperatorError) -> Failure {
    match error {
        OperatorError::NoOutbox => Failure::usage(error.to_string()).hint("name a SQL store with `--store`"),
        OperatorError::NoSuchEffect(_) => {
            Failure::no(error.to_string()).hint("`ibid effects list` shows what is there")
        }
        OperatorError::Store(error) => failed(&error),
        error => Failure::no(error.to_string()).hint("`ibid effects list` shows how it stands"),
    }
}

pub(super) fn failed(error: &StoreError) -> Failure {
    Failure::world("the store failed")
        .because_of(error)
        .hint("it may have been written all the same: look again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_runs_the_command_has_a_name_or_a_number() {
        let who = user().expect("a name or a number");
        assert!(OperatorAction::new(&who, "a test").is_ok(), "{who}");
    }
}
