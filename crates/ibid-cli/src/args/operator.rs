//! What an operator is asked for: which records, which effects, and who acts why.

use clap::{Args, Subcommand};

use super::{LIST_LIMIT, StoreArgs};

/// Which records.
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

    /// Only of this very path [default: every path]
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

    /// Only those that a person must look at [default: all]
    #[arg(long)]
    pub(crate) dead_letters: bool,
}

/// One record by its id, or all that fit.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TargetArgs {
    /// The first 4 to 64 hex digits of the record's id, as logs and `keys list` show it [default: all records that fit the
    /// options below, of which at least one must be given]
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,

    #[command(flatten)]
    pub(crate) which: WhichArgs,
}

/// How unknown records are settled.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KeysResolveArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,

    /// It was not executed: the next retry runs [default: say this, `--status` or `--seen`]
    #[arg(long, conflicts_with_all = ["status", "seen"], required_unless_present_any = ["status", "seen"])]
    pub(crate) not_executed: bool,

    /// It is a dead letter whose outcome is known, and you have seen to it: it is one no longer, and stays as it is
    /// [default: say this, `--status` or `--not-executed`]
    #[arg(long, conflicts_with = "status")]
    pub(crate) seen: bool,

    /// It was executed, and every retry gets an answer with this status, 200 to 599 [default: say this, `--not-executed` or
    /// `--seen`]
    #[arg(long, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(200..=599))]
    pub(crate) status: Option<u16>,

    /// The type of the answer's body
    #[arg(long, value_name = "TYPE", default_value = "application/json", requires = "status")]
    pub(crate) content_type: String,

    /// The body of the answer; `@PATH` reads a file [default: an empty one]
    #[arg(long, value_name = "TEXT", requires = "status")]
    pub(crate) body: Option<String>,

    #[command(flatten)]
    pub(crate) act: ActArgs,
}

/// Whose answer is forgotten.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KeysForgetArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,

    #[command(flatten)]
    pub(crate) act: ActArgs,
}

/// Who acts, why, and whether it is meant.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ActArgs {
    /// Why: kept in the history [default: none, it must be said]
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,

    /// Who acts: kept in the history [default: the user that runs the command]
    #[arg(long, value_name = "NAME")]
    pub(crate) who: Option<String>,

    /// Do it [default: show what would be done, and exit with 1]
    #[arg(long)]
    pub(crate) yes: bool,

    /// Print one JSON object [default: a line]
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) place: StoreArgs,
}

/// What may be done about effects.
#[derive(Debug, Subcommand)]
pub(crate) enum EffectsCommand {
    /// List effects, in the order of their places in the outbox
    List(EffectsListArgs),
    /// Have a dead or unknown effect made: your word that making it, or making it again, is right
    Retry(EffectArgs),
    /// Let a dead or unknown effect go: it will not be made
    Discard(EffectArgs),
}

/// Which effects to list.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct EffectsListArgs {
    /// Only in this state: queued, claimed, done, unknown, dead or discarded [default: every state]
    #[arg(long, conflicts_with = "dead_letters")]
    pub(crate) state: Option<String>,

    /// Only of the record whose id begins so [default: of every record]
    #[arg(long, value_name = "ID")]
    pub(crate) record: Option<String>,

    /// Only those that a person must look at: dead, or unknown with nobody left to ask [default: all]
    #[arg(long)]
    pub(crate) dead_letters: bool,

    /// How many at most, up to 1000
    #[arg(long, value_name = "COUNT", default_value_t = LIST_LIMIT)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,

    /// Only after this place: how the list before went on
    #[arg(long, value_name = "PLACE", default_value_t = 0)]
    pub(crate) after: i64,

    /// Print one JSON array [default: a table]
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) place: StoreArgs,
}

/// Which effect.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct EffectArgs {
    /// Its place in the outbox, as `effects list` shows it
    #[arg(value_name = "PLACE")]
    pub(crate) seq: i64,

    #[command(flatten)]
    pub(crate) act: ActArgs,
}
