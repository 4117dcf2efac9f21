//! The operator's commands. Each gets what it needs and a writer for its output; `main` opens the stores.

pub(crate) mod config_check;
mod confirm;
pub(crate) mod copy;
#[cfg(feature = "demo")]
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod effects;
pub(crate) mod identity;
pub(crate) mod key_counts;
pub(crate) mod keys;
pub(crate) mod ledger;
pub(crate) mod migrate;
pub(crate) mod reap;
pub(crate) mod resolve;
mod resolve_bulk;
pub(crate) mod sweep_reconcile;
