//! Runs the simulated card processor until Ctrl-C, to try out an application with it by hand.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use ibid_testkit::processor::{CardProcessor, ChargeFaults, ProcessorOptions, WebhookSecret};

/// A simulated card processor that moves no money, and fails on demand.
#[derive(Parser)]
struct Args {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:8091")]
    listen: SocketAddr,
    /// Faults and their frequency, such as `timeout=0.1,reset=every-3,late=first:300ms`.
    #[arg(long, default_value = "", value_parser = ChargeFaults::parse)]
    faults: ChargeFaults,
    /// Seed of the faults: the same seed gives the nth request the same fault.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Merchant's webhook endpoint: `http://ADDRESS:PORT/PATH`.
    #[arg(long, requires = "webhook_secret")]
    webhook: Option<http::Uri>,
    /// Secret that webhooks are signed with: `whsec_` and base64, or plain text.
    #[arg(long, requires = "webhook", value_parser = WebhookSecret::parse)]
    webhook_secret: Option<WebhookSecret>,
    /// Charges again for a key that was charged before, like a processor without keys.
    #[arg(long)]
    ignore_keys: bool,
    /// File for the charges, so that a restarted processor remembers them.
    #[arg(long)]
    state: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Args { listen, faults, seed, webhook, webhook_secret, ignore_keys, state } = Args::parse();
    let webhook = match webhook.zip(webhook_secret) {
        Some((url, secret)) => {
            let address = url.authority().ok_or("`--webhook` has no address")?.as_str().parse()?;
            Some((address, url.path().to_owned(), secret))
        }
        None => None,
    };
    let options = ProcessorOptions { listen, faults, seed, webhook, ignore_keys, state };
    let processor = CardProcessor::start(options);
    println!("listening on {}", processor.address());
    tokio::signal::ctrl_c().await?;
    Ok(())
}
