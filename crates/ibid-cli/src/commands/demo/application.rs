//! The reference application and the card processor that it charges through, in this process.

use std::net::SocketAddr;
use std::time::Duration;

use payments::account::Accounts;
use payments::args::{ProviderArgs, ServeArgs};
use payments::db::StoreUrl;
use payments::listen::Running;
use payments::outgoing::HttpUrl;
use payments::provider::faults::Faults;
use payments::{provider, serve};
use tokio::sync::oneshot;

use super::reachable;
use crate::output::Failure;

/// The two at work.
pub(super) struct Application {
    payments: Running,
    provider: Running,
    /// Dropped, it ends the processor.
    provider_until: oneshot::Sender<()>,
}

impl Application {
    /// Both listen when this returns. From `stop` on the application takes nothing more.
    pub(super) async fn start(
        provider_at: SocketAddr,
        payments_at: SocketAddr,
        store: &str,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Application, Failure> {
        let (provider_until, until) = oneshot::channel::<()>();
        let until = async {
            let _ = until.await;
        };
        let provider = provider::start(provider_args(provider_at)?, until)
            .await
            .map_err(|error| not_started("the card processor", "--provider-listen", &*error))?;
        let args = serve_args(payments_at, store, reachable(provider.address()))?;
        let payments = serve::start(args, stop)
            .await
            .map_err(|error| not_started("the payments API", "--payments-listen", &*error))?;
        Ok(Application { payments, provider, provider_until })
    }

    pub(super) fn payments_address(&self) -> SocketAddr {
        self.payments.address()
    }

    pub(super) fn provider_address(&self) -> SocketAddr {
        self.provider.address()
    }

    /// Waits for both. The processor goes last: a charge under way still gets its answer.
    pub(super) async fn ended(self) -> Result<(), Failure> {
        let Application { payments, provider, provider_until } = self;
        let ended = payments.ended().await;
        drop(provider_until);
        let ended = ended.and(provider.ended().await);
        ended.map_err(|error| Failure::world("the payments API failed").because_of(&*error))
    }
}

fn provider_args(listen: SocketAddr) -> Result<ProviderArgs, Failure> {
    let faults = Faults::parse(FAULTS).map_err(|error| unreadable(&error))?;
    Ok(ProviderArgs {
        listen,
        faults,
        seed: 1,
        webhook: None,
        webhook_secret: None,
        ignore_keys: false,
        state: None,
    })
}

fn serve_args(listen: SocketAddr, store: &str, provider: SocketAddr) -> Result<ServeArgs, Failure> {
    Ok(ServeArgs {
        listen,
        store: StoreUrl::parse(store).map_err(|error| unreadable(&error))?,
        provider: HttpUrl::parse(&format!("http://{provider}")).map_err(|error| unreadable(&error))?,
        lease: LEASE,
        accounts: Some(Accounts::parse(&format!("{TOKEN} = demo")).map_err(|error| unreadable(&error))?),
        hook_secret: None,
        charge_once: false,
        verify_after: None,
        sweep_every: SWEEP_EVERY,
        poll_every: POLL_EVERY,
    })
}

fn unreadable(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::world("the demo can't be set up").because_of(error)
}

fn not_started(what: &str, flag: &str, error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::world(format!("cannot start {what}"))
        .because_of(error)
        .hint(format!("`{flag}` with another address, if that is the cause"))
}

/// The one token of the one account.
pub(super) const TOKEN: &str = "sk_demo";

/// The money is taken and nobody is told, whenever a charge is first asked for: the fault that loses money.
const FAULTS: &str = "reset=first";

/// A lapse is not shown, so it may be rare; a third of it is how long the worker waits for the processor.
const LEASE: Duration = Duration::from_secs(60);

/// As of `payments serve`.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// Somebody is watching for the second try, which is due after a second or so.
const POLL_EVERY: Duration = Duration::from_millis(200);
