//! Steps of a store's schema, and which programs can use the schema afterwards. The SQL stores share these rules.
//!
//! A step either expands the schema (it adds what older programs pass over) or contracts it. The store keeps the step that a
//! program must know at least, so an older program accepts a newer schema that only expanded.

#[cfg(feature = "sqlite")]
use crate::failpoint;

/// A migration that was made: the steps of the schema before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// Number of the last step before it; zero if there were no tables.
    pub before: u32,
    /// Number of the last step now.
    pub after: u32,
}

/// The effect of a step on older programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    /// It adds tables, nullable columns, columns with a default, or indexes. Older programs work on.
    Expand,
    /// It removes or changes something. A program must know this step.
    Contract,
}

/// The steps of the schema that a store has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SchemaState {
    /// Number of the last step; zero if there is no schema.
    pub(super) step: u32,
    /// The step that a program must know at least.
    pub(super) needs: u32,
}

impl SchemaState {
    /// Returns whether a program that knows the steps up to `known` can use the schema: it has all of them, and no other
    /// step excludes the program.
    pub(super) fn is_usable(self, known: u32) -> bool {
        self.step >= known && !self.excludes(known)
    }

    /// Returns whether a later step excludes a program that knows the steps up to `known`.
    pub(super) fn excludes(self, known: u32) -> bool {
        self.needs > known
    }
}

/// Returns the step that a program must know at least once all steps of these kinds are taken: the last one that contracts.
pub(super) fn needs_at_least(taken: impl Iterator<Item = StepKind>) -> u32 {
    let numbered = (1..).zip(taken);
    numbered.filter(|(_, kind)| *kind == StepKind::Contract).map(|(number, _)| number).last().unwrap_or(1)
}

/// Returns how many of a store's steps this program knows: all but the last, which a later release may have. Tests of two
/// releases side by side switch it on.
#[cfg(feature = "sqlite")]
pub(super) fn known_steps(all: usize) -> u32 {
    all as u32 - u32::from(!failpoint::knows_next_schema())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_program_accepts_a_schema_that_only_expanded() {
        let state = |step, needs| SchemaState { step, needs };
        assert!(state(2, 1).is_usable(2) && state(5, 2).is_usable(2));
        assert!(!state(3, 3).is_usable(2), "a later step contracts");
        assert!(!state(1, 1).is_usable(2), "a step is missing");
    }

    #[test]
    fn a_program_must_know_the_last_step_that_contracts() {
        use StepKind::{Contract, Expand};
        assert_eq!(needs_at_least([Expand, Expand].into_iter()), 1);
        assert_eq!(needs_at_least([Expand, Contract, Expand].into_iter()), 2);
    }
}
