//! Tests that run over published vectors or against a second reading of the rules, one binary for all of them.

mod json_properties;
mod json_vectors;
mod key_vectors;
mod oracle;
mod vectors;
