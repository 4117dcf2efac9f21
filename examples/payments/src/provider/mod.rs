//! `payments provider`: a simulated card processor. It deduplicates by key, and then does what processors do on
//! bad days.
//!
//! It stands for the world outside and shares no code with the API but its HTTP client.

pub mod charges;
pub mod faults;
pub mod ledger;
pub mod server;
pub mod webhook;

use crate::args::ProviderArgs;
use crate::listen::{self, Failure, Running};
use charges::Processor;
use faults::Dice;
use ledger::Ledger;
use webhook::Webhooks;

/// Starts it. It ends with `stop`, and every connection with it.
pub async fn start(
    args: ProviderArgs,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<Running, Failure> {
    let ledger = Ledger::open(args.state.as_deref(), args.ignore_keys)?;
    let webhooks = args.webhook.zip(args.webhook_secret).map(|(url, secret)| Webhooks::start(url, secret));
    let processor = Processor::new(ledger, Dice::new(args.faults, args.seed), webhooks);
    tracing::info!(seed = args.seed, "the dice are seeded");
    let (listener, address) = listen::bind(args.listen).await?;
    Ok(Running::new(address, async move {
        tokio::select! {
            () = server::serve(listener, processor.router()) => {}
            () = stop => {}
        }
        Ok(())
    }))
}
