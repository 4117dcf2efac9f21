//! Shared parts of the operator's actions: who acts, why, and the confirmation.

use std::io::Write;
use std::os::unix::fs::MetadataExt;

use ibid::operator::{OperatorAction, OperatorActionError, OperatorError};
use ibid_core::store::StoreError;

use super::keys::print_records;
use crate::args::operator::ActArgs;
use crate::output::Failure;

/// Returns who acts and why, checked.
pub(super) fn act(args: &ActArgs) -> Result<OperatorAction, Failure> {
    let who = args.who.clone().or_else(user).unwrap_or_default();
    OperatorAction::new(&who, &args.reason).map_err(|error| {
        let hint = match error {
            OperatorActionError::Who => "say who you are with `--who`",
            _ => "say why with `--reason`: it is stored in the history",
        };
        Failure::usage(error.to_string()).hint(hint)
    })
}

/// Returns the user that runs the command: by name, or by number if no variable has the name, as in a container.
fn user() -> Option<String> {
    let named = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let numbered = || Some(format!("uid {}", std::fs::metadata("/proc/self").ok()?.uid()));
    named.filter(|name| !name.is_empty()).or_else(numbered)
}

/// Returns the failure of a command without `--yes`, which changes nothing.
pub(super) fn not_confirmed() -> Failure {
    Failure::no("nothing was done yet").hint("if that is right, say it again with `--yes`")
}

/// Turns the error of an action on the record `id` into the command's failure.
pub(super) fn record_failure(error: OperatorError, id: &str, out: &mut dyn Write) -> Failure {
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
        error => effect_failure(error),
    }
}

/// Turns the error of an action on an effect into the command's failure.
pub(super) fn effect_failure(error: OperatorError) -> Failure {
    match error {
        OperatorError::NoOutbox => Failure::usage(error.to_string()).hint("name a SQL store with `--store`"),
        OperatorError::NoSuchEffect(_) => {
            Failure::no(error.to_string()).hint("`ibid effects list` shows what is there")
        }
        OperatorError::Store(error) => store_failure(&error),
        error => Failure::no(error.to_string()).hint("`ibid effects list` shows how it stands"),
    }
}

pub(super) fn store_failure(error: &StoreError) -> Failure {
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
