//! The reference application and the card processor that it charges through, in this process.

use std::net::SocketAddr;
use std::time::Duration;

use payments::account::Accounts;
use payments::config::Config;
use payments::serve::{self, Server};

use super::{processor, reachable};
use crate::gateway::bind;
use crate::output::Failure;

/// The running application with its processor.
pub(super) struct Application {
    payments: Server,
    processor_address: SocketAddr,
}

impl Application {
    /// Starts both. Both listen when this returns. After `stop` the application accepts no more requests; the processor
    /// runs as long as the runtime, so that a charge in flight still gets its response.
    pub(super) async fn start(
        processor_at: SocketAddr,
        payments_at: SocketAddr,
        store: &str,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Application, Failure> {
        let listener = bind(processor_at, "--provider-listen").await?;
        let processor_address = listener.local_addr().map_err(|error| cannot_set_up(&error))?;
        tokio::spawn(processor::serve(listener));
        let config = config(payments_at, store, reachable(processor_address))?;
        let payments = serve::start(config, stop).await.map_err(|error| {
            Failure::world("cannot start the payments API")
                .because_of(&*error)
                .hint("`--payments-listen` with another address, if that is the cause")
        })?;
        Ok(Application { payments, processor_address })
    }

    pub(super) fn payments_address(&self) -> SocketAddr {
        self.payments.address
    }

    pub(super) fn processor_address(&self) -> SocketAddr {
        self.processor_address
    }

    /// Waits until the application has stopped.
    pub(super) async fn wait_for_end(self) -> Result<(), Failure> {
        let result = self.payments.ended.await.map_err(Into::into).flatten();
        result.map_err(|error| Failure::world("the payments API failed").because_of(&*error))
    }
}

fn config(listen: SocketAddr, store: &str, processor: SocketAddr) -> Result<Config, Failure> {
    let accounts = Accounts::parse(&format!("{TOKEN} = demo"));
    let provider = format!("http://{processor}").parse::<http::Uri>();
    Ok(Config {
        listen,
        store: store.to_owned(),
        provider: provider.map_err(|error| cannot_set_up(&error))?,
        lease: LEASE,
        accounts: Some(accounts.map_err(Failure::world)?),
        hook_secret: None,
        charge_once: false,
        verify_after: None,
        sweep_every: SWEEP_EVERY,
        poll_every: POLL_EVERY,
    })
}

fn cannot_set_up<E: std::error::Error + 'static>(error: &E) -> Failure {
    Failure::world("the demo can't be set up").because_of(error)
}

/// The token of the only account.
pub(super) const TOKEN: &str = "sk_demo";

/// Lease of the application: long enough that no attempt lapses in the demo. The worker waits a third of it for the
/// processor.
const LEASE: Duration = Duration::from_secs(60);

/// Sweep interval, the default of `payments`.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// Poll interval of the worker: short, because the reader waits for the second try, which is due after about a second.
const POLL_EVERY: Duration = Duration::from_millis(200);
