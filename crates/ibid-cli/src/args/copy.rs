//! Arguments of `ibid copy`.

use clap::Args;

/// Arguments of `ibid copy`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CopyArgs {
    /// The store to copy: a `--store` URL [default: none, it is required]
    #[arg(long, value_name = "URL", env = "IBID_COPY_FROM", hide_env_values = true)]
    pub(crate) from: String,

    /// The store to fill: a `--store` URL, of an empty database; missing tables are created [default: none, it is required]
    #[arg(long, value_name = "URL", env = "IBID_COPY_TO", hide_env_values = true)]
    pub(crate) to: String,

    /// Cancel a copy that has not ended, and open the source again [default: copy, or continue a copy that was stopped]
    #[arg(long)]
    pub(crate) cancel: bool,

    /// Print one JSON object [default: one line per field]
    #[arg(long)]
    pub(crate) json: bool,
}
