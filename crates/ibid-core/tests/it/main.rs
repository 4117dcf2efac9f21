//! The tests of the rules, one binary for all of them: published vectors, and stories of the state machine.

mod interleavings;
mod key_vectors;
mod state_table;
mod stories;
mod vectors;
