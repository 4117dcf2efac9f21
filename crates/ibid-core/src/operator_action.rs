//! An operator's action on a record: the name and the reason, kept in the record's history.

use std::fmt;

/// An operator's action: who acts, and for what reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorAction {
    who: Box<str>,
    reason: Box<str>,
}

impl OperatorAction {
    /// Longest name, in characters: room for an operator, a team, or a job with its number.
    pub const WHO_MAX: usize = 100;

    /// Longest reason, in characters: room for a sentence and a ticket number. The history keeps it.
    pub const REASON_MAX: usize = 500;

    /// Creates an action of `who`, because of `reason`.
    ///
    /// Both begin with a visible character and have no control characters, because they are printed in one line.
    ///
    /// # Errors
    ///
    /// Returns an error if the name or the reason is empty, too long or malformed.
    pub fn new(who: &str, reason: &str) -> Result<OperatorAction, OperatorActionError> {
        if !is_words(who, OperatorAction::WHO_MAX) {
            return Err(OperatorActionError::Who);
        }
        if !is_words(reason, OperatorAction::REASON_MAX) {
            return Err(OperatorActionError::Reason);
        }
        Ok(OperatorAction { who: who.into(), reason: reason.into() })
    }

    /// Returns the name of the operator.
    pub fn who(&self) -> &str {
        &self.who
    }

    /// Returns the reason for the action.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// Formats the action as it ends a line of history.
impl fmt::Display for OperatorAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by {}: {}", self.who, self.reason)
    }
}

/// An action without a valid name or reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorActionError {
    /// The name is empty, too long or malformed.
    #[error("a name has 1 to 100 characters, without control characters or a leading blank")]
    Who,
    /// The reason is empty, too long or malformed.
    #[error("a reason has 1 to 500 characters, without control characters or a leading blank")]
    Reason,
}

fn is_words(text: &str, len_max: usize) -> bool {
    let starts_visibly = text.chars().next().is_some_and(|first| !first.is_whitespace());
    starts_visibly && text.chars().count() <= len_max && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_act_needs_a_name_and_a_reason_that_fit_one_line() {
        assert!(OperatorAction::new("ann", "the bank has it").is_ok());
        assert!(OperatorAction::new("änn ✓", &"x".repeat(500)).is_ok());
        for who in ["", " ann", "a\nb", &"x".repeat(101)] {
            assert_eq!(OperatorAction::new(who, "why"), Err(OperatorActionError::Who), "{who:?}");
        }
        for reason in ["", "  ", "a\u{7}", &"x".repeat(501)] {
            assert_eq!(OperatorAction::new("ann", reason), Err(OperatorActionError::Reason), "{reason:?}");
        }
    }
}
