//! The binary as a shell sees it.

mod config;
