//! Arguments of `ibid identity`, about the identity of a store's records.

use clap::{Args, Subcommand};

use super::StoreArgs;

/// The subcommands of `ibid identity`.
#[derive(Debug, Subcommand)]
pub(crate) enum IdentityCommand {
    /// Show the settings that make up the ids of a store's records, and which previous ids are still looked up
    Show(IdentityShowArgs),
    /// Let the next start use another tenant source, scope, bind, path mode or key source
    ///
    /// Retires the stored identity: running nodes stop reserving keys and answer 503. Waits until none of them can still
    /// act on it: twice `store.identity_valid_for`, 30 s by default, and on PostgreSQL also for transactions that are open
    /// then. After that, stop the nodes and start them with the new configuration. They find earlier records under their
    /// old ids.
    Change(IdentityChangeArgs),
}

/// Arguments of `ibid identity show`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct IdentityShowArgs {
    /// Print one JSON object [default: one line per field]
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of `ibid identity change`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct IdentityChangeArgs {
    /// Let the next start take the tenant from another source: existing records are not found then, and each of their keys
    /// could run again [default: refused while a live record is left]
    #[arg(long, conflicts_with = "forget_previous")]
    pub(crate) abandon: bool,

    /// Change nothing, but stop looking up the ids of previous identities; refused while a record from before the change
    /// is left [default: they are looked up]
    #[arg(long)]
    pub(crate) forget_previous: bool,

    /// Do it [default: show what would be done, and exit with 1]
    #[arg(long)]
    pub(crate) yes: bool,

    /// Print one JSON object [default: a line]
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}
