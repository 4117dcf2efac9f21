//! Tests that run over published vectors, one binary for all of them.

mod key_vectors;
mod vectors;
