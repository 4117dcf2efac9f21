//! The testkit's own promises; one binary, for linking dominates with many.

mod postgres;
