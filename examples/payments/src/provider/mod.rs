//! `payments provider`: a simulated card processor. It deduplicates by key, and then does what processors do on
//! bad days.
//!
//! It stands for the world outside and shares no code with the API but its HTTP client.

pub mod charges;
pub mod faults;
pub mod ledger;
pub mod server;
pub mod webhook;

use std::error::Error;

use crate::args::ProviderArgs;
use crate::listen;
use charges::Processor;
use faults::Dice;
use ledger::Ledger;
use webhook::Webhooks;

/// Runs until the process is told to stop.
pub async fn run(args: ProviderArgs) -> Result<(), Box<dyn Error + Send + Sync>> {
    let stop = listen::stop_signal()?;
    let ledger = Ledger::open(args.state.as_deref(), args.ignore_keys)?;
    let webhooks = args.webhook.zip(args.webhook_secret).map(|(url, secret)| Webhooks::start(url, secret));
    let processor = Processor::new(ledger, Dice::new(args.faults, args.seed), webhooks);
    tracing::info!(seed = args.seed, "the dice are seeded");
    let listener = listen::bind(args.listen).await?;
    tokio::select! {
        () = server::serve(listener, processor.router()) => {}
        () = stop => {}
    }
    Ok(())
}
