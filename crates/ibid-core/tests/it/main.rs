//! Tests of the rules, one binary for all of them: published vectors, and stories of the state machine.

mod evidence;
mod interleavings;
mod json_properties;
mod json_vectors;
mod key_vectors;
mod oracle;
mod reference;
mod state_table;
mod stories;
mod vectors;
