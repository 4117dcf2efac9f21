//! The gateway: what stands between clients and the upstream.

// Wired up by the command that runs the gateway.
#![allow(dead_code)]

pub(crate) mod forward;
pub(crate) mod server;

#[cfg(test)]
mod forward_tests;
#[cfg(test)]
mod server_tests;
