//! The arguments of `ibid reconcile ledger`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ibid_ledger::input_file::InputFormat;

use crate::args::StoreArgs;

/// Arguments of `ibid reconcile ledger`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LedgerArgs {
    /// Our side: a FILE, `-` for stdin, `effects`, `effects:KIND` or `sql:SELECT`
    ///
    /// `effects` are the calls in the store's outbox, by the key that the provider was given: columns `key`, `provider_id`,
    /// `kind`, `name`, `state` and `tenant`; of these only `provider_id` is compared unless `--compare` says otherwise.
    /// Calls that are not done yet are open: the provider may have them or not. `sql:` runs one statement on the store's
    /// database, in a transaction that can't write. [default: none]
    #[arg(long, value_name = "WHAT")]
    pub(crate) ours: String,

    /// The provider's side: a FILE, or `-` for stdin [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) theirs: String,

    /// The format of the files: CSV with a header, or one JSON object per line [default: by the file extension]
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,

    /// The column that both sides are joined by
    #[arg(long, value_name = "COLUMN", default_value = "key")]
    pub(crate) key: String,

    /// The columns to compare, separated by commas [default: all that both sides have]
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    pub(crate) compare: Vec<String>,

    /// The column of ours that marks an open outcome: the provider may have such a line or not [default: none]
    #[arg(long, value_name = "COLUMN")]
    pub(crate) open: Option<String>,

    /// With `effects`: those done longer ago may be missing at the provider [default: none may]
    ///
    /// For an export that does not start with the very first charge: `26h` for one of the last day.
    #[arg(long, value_name = "DURATION", value_parser = crate::args::duration)]
    pub(crate) since: Option<Duration>,

    /// Write a dead letter for each line that the provider has and we don't [default: only with `--every`]
    #[arg(long)]
    pub(crate) dead_letters: bool,

    /// The provider's name in dead letters and metrics
    #[arg(long, value_name = "NAME", default_value = "provider")]
    pub(crate) source: String,

    /// Repeat the comparison after this time, until stopped [default: once]
    #[arg(long, value_name = "DURATION", value_parser = crate::args::duration)]
    pub(crate) every: Option<Duration>,

    /// With `--every`: the address to serve `/metrics` and `/healthz` on [default: nowhere]
    #[arg(long, value_name = "ADDRESS", requires = "every")]
    pub(crate) admin_listen: Option<SocketAddr>,

    /// Print one JSON object [default: a table]
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Format of the files to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Comma-separated, the first line names the columns.
    Csv,
    /// One JSON object per line.
    Jsonl,
}

impl From<Format> for InputFormat {
    fn from(format: Format) -> InputFormat {
        match format {
            Format::Csv => InputFormat::Csv,
            Format::Jsonl => InputFormat::JsonLines,
        }
    }
}
