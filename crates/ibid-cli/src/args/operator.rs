//! Arguments of the operator's commands: which records, which effects, who acts and why.

use clap::{Args, Subcommand};

use super::{LIST_LIMIT, StoreArgs};

/// Arguments that select records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct WhichArgs {
    /// Only in this state: pending, in_progress, completed, retryable or unknown [default: every state]
    #[arg(long)]
    pub(crate) state: Option<String>,

    /// Only this tenant's [default: every tenant's]
    #[arg(long)]
    pub(crate) tenant: Option<String>,

    /// Only under this key, written without quotes [default: every key]
    #[arg(long)]
    pub(crate) key: Option<String>,

    /// Only of this HTTP method [default: every method]
    #[arg(long)]
    pub(crate) method: Option<String>,

    /// Only of exactly this path [default: every path]
    #[arg(long, conflicts_with = "route")]
    pub(crate) path: Option<String>,

    /// Only of paths that this pattern matches, such as `/payments/{id}`; with a trailing slash: `/payments/{id}/` [default: every path]
    #[arg(long, value_name = "PATTERN")]
    pub(crate) route: Option<String>,

    /// Only those whose first request came longer ago, such as `15m` [default: every age]
    #[arg(long, value_name = "DURATION")]
    pub(crate) older_than: Option<String>,

    /// Only those whose first request came at this instant or later, such as `2026-11-16T09:00:00Z` [default: every age]
    #[arg(long, value_name = "INSTANT")]
    pub(crate) created_from: Option<String>,

    /// Only those whose first request came before this instant [default: every age]
    #[arg(long, value_name = "INSTANT")]
    pub(crate) created_before: Option<String>,

    /// Only dead letters: records that need an operator [default: all]
    #[arg(long)]
    pub(crate) dead_letters: bool,
}

/// One record by its id, or all that match.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TargetArgs {
    /// The first 4 to 32 hex digits of the record's id, as logs and `keys list` show it [default: all records that match
    /// the options below, of which at least one must be given]
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,

    #[command(flatten)]
    pub(crate) which: WhichArgs,
}

/// Arguments of `ibid keys resolve`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KeysResolveArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,

    /// It was not executed: the next retry runs [default: this, `--status` or `--seen` is required]
    #[arg(long, conflicts_with_all = ["status", "seen"], required_unless_present_any = ["status", "seen"])]
    pub(crate) not_executed: bool,

    /// It is a dead letter whose outcome is known, and you have dealt with it: clear the mark and change nothing else
    /// [default: this, `--status` or `--not-executed` is required]
    #[arg(long, conflicts_with = "status")]
    pub(crate) seen: bool,

    /// It was executed, and every retry gets a response with this status, 200 to 599 [default: this, `--not-executed` or
    /// `--seen` is required]
    #[arg(long, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(200..=599))]
    pub(crate) status: Option<u16>,

    /// The media type of the response body
    #[arg(long, value_name = "TYPE", default_value = "application/json", requires = "status")]
    pub(crate) content_type: String,

    /// The body of the response; `@PATH` reads a file [default: an empty one]
    #[arg(long, value_name = "TEXT", requires = "status")]
    pub(crate) body: Option<String>,

    #[command(flatten)]
    pub(crate) act: ActArgs,
}

/// Arguments of `ibid keys forget`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KeysForgetArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,

    #[command(flatten)]
    pub(crate) act: ActArgs,
}

/// Arguments of an operator's action: who acts, why, and whether it is confirmed.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ActArgs {
    /// The reason for the action, stored in the history [default: none, it is required]
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,

    /// The name of who acts, stored in the history [default: the user that runs the command]
    #[arg(long, value_name = "NAME")]
    pub(crate) who: Option<String>,

    /// Do it [default: show what would be done, and exit with 1]
    #[arg(long)]
    pub(crate) yes: bool,

    /// Print one JSON object [default: a line]
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// The subcommands of `ibid effects`.
#[derive(Debug, Subcommand)]
pub(crate) enum EffectsCommand {
    /// List effects, ordered by their numbers
    List(EffectsListArgs),
    /// Queue a dead or unknown effect: you confirm that making the call, or repeating it, is right
    Retry(EffectArgs),
    /// Discard a dead or unknown effect: its call will not be made
    Discard(EffectArgs),
}

/// Arguments of `ibid effects list`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct EffectsListArgs {
    /// Only in this state: queued, claimed, done, unknown, dead or discarded [default: every state]
    #[arg(long, conflicts_with = "dead_letters")]
    pub(crate) state: Option<String>,

    /// Only of the record whose id begins with these digits [default: of every record]
    #[arg(long, value_name = "ID")]
    pub(crate) record: Option<String>,

    /// Only those that need an operator: dead, or unknown without a lookup left to try [default: all]
    #[arg(long)]
    pub(crate) dead_letters: bool,

    /// Most effects to list, up to 1000
    #[arg(long, value_name = "COUNT", default_value_t = LIST_LIMIT)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,

    /// Continue an earlier list behind this effect, which that list ended with
    #[arg(long, value_name = "EFFECT", default_value_t = 0)]
    pub(crate) after: i64,

    /// Print one JSON array [default: a table]
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Arguments of an action on one effect.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct EffectArgs {
    /// Its number, as `effects list` shows it
    #[arg(value_name = "EFFECT")]
    pub(crate) seq: i64,

    #[command(flatten)]
    pub(crate) act: ActArgs,
}
