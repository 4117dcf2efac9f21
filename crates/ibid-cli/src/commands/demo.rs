//! `ibid demo`: a gateway before an API that knows nothing of it, the reference application with its provider, on
//! stores that go when it ends, and lines to paste.

mod api;
mod application;
mod processor;
mod script;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};

use futures_util::FutureExt as _;
use tokio::net::TcpListener;

use crate::args::{DemoArgs, GatewayArgs};
use crate::config::{self, Config, EnvVars};
use crate::gateway::Gateway;
use crate::open_store::open_store;
use crate::output::{Failure, Failures, print_line};
use application::Application;
use script::{Scene, quoted};

/// Runs the demo until the process is told to stop.
pub(crate) fn run(args: &DemoArgs, out: &mut dyn Write) -> Result<(), Failures> {
    let log = config::LogSettings::of_process()?;
    let listen = DemoStore::of("--listen", args.listen.as_deref(), config::LISTEN)?;
    let admin = DemoStore::of("--admin-listen", args.admin_listen.as_deref(), config::ADMIN_LISTEN)?;
    let payments = DemoStore::of("--payments-listen", args.payments_listen.as_deref(), PAYMENTS_LISTEN)?;
    let provider = DemoStore::of("--provider-listen", args.provider_listen.as_deref(), PROVIDER_LISTEN)?;
    let _spans = crate::logging(&log)?;
    let folder = tempfile::Builder::new()
        .prefix("ibid-demo-")
        .tempdir()
        .map_err(|error| Failure::world("cannot make a temporary folder").because(error))?;
    let store = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let (store, payments_store) = (store("ibid.db"), store("payments.db"));
    // Dropped before the folder: then nobody writes there any more.
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::world("cannot start the runtime").because(error))?;
    runtime.block_on(async {
        let (api, api_address) = listener().await?;
        tokio::spawn(api::serve(api));
        let config = gateway_config(&listen, &admin, api_address, &store)?;
        let gateway = Gateway::start(&config, open_store(&config.store, true).await?).await?;
        let (public_address, admin_address) = gateway.addresses()?;
        let stop = crate::stop_signal()?.boxed().shared();
        let application =
            Application::start(provider.address, payments.address, &payments_store, stop.clone()).await?;
        let scene = Scene {
            public: reachable(public_address),
            admin: reachable(admin_address),
            api: api_address,
            payments: reachable(application.payments_address()),
            provider: reachable(application.processor_address()),
            taken: [listen, admin, payments, provider].into_iter().filter_map(|place| place.taken).collect(),
            ibid: program(),
            store,
        };
        print_line(out, scene.script())?;
        let ((), ended) = tokio::join!(gateway.run(stop), application.ended());
        Ok(ended?)
    })
}

/// Where to listen.
#[derive(Debug)]
struct DemoStore {
    address: SocketAddr,
    /// The default that somebody else has.
    taken: Option<SocketAddr>,
}

impl DemoStore {
    /// As given, come what may. Nobody asked for the default, so where that is taken any free port will do.
    fn of(flag: &str, given: Option<&str>, default: &str) -> Result<DemoStore, Failure> {
        if let Some(text) = given.filter(|text| !text.is_empty()) {
            let address = config::parse_address(text).map_err(|mut failure| {
                failure.message = format!("`{flag}` {}", failure.message);
                failure
            })?;
            return Ok(DemoStore { address, taken: None });
        }
        let address = config::parse_address(default)?;
        Ok(match StdListener::bind(address) {
            Ok(_) => DemoStore { address, taken: None },
            Err(_) => DemoStore { address: SocketAddr::new(address.ip(), 0), taken: Some(address) },
        })
    }
}

/// The gateway's own configuration, with nothing but what the demo says: a file that lies about is not the demo's.
fn gateway_config(
    listen: &DemoStore,
    admin: &DemoStore,
    api: SocketAddr,
    store: &str,
) -> Result<Config, Failures> {
    let args = GatewayArgs {
        upstream: Some(format!("http://{api}")),
        tenant: Some("none".to_owned()),
        listen: Some(listen.address.to_string()),
        admin_listen: Some(admin.address.to_string()),
        store: Some(store.to_owned()),
        ..GatewayArgs::default()
    };
    Config::read(&args, &EnvVars::default(), "", "")
}

/// A free port on loopback.
async fn listener() -> Result<(TcpListener, SocketAddr), Failure> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    bound
        .and_then(|listener| listener.local_addr().map(|address| (listener, address)))
        .map_err(|error| Failure::world("cannot listen on loopback").because(error))
}

/// An address to connect to: one that listens everywhere is here too.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// This program as a shell finds it: by name if it was called by name, else by its path.
fn program() -> String {
    let by_name = std::env::args().next().is_some_and(|name| !name.contains(std::path::is_separator));
    match std::env::current_exe() {
        Ok(path) if !by_name => quoted(&path.display().to_string()),
        _ => "ibid".to_owned(),
    }
}

/// The default of `payments`.
const PAYMENTS_LISTEN: &str = "127.0.0.1:8090";

/// The default of the simulated card processor.
const PROVIDER_LISTEN: &str = "127.0.0.1:8091";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_default_port_that_is_taken_gives_way() {
        let other = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = other.local_addr().unwrap();
        let text = address.to_string();
        let place = DemoStore::of("--listen", None, &text).unwrap();
        assert_eq!((place.address.port(), place.taken), (0, Some(address)));
        let place = DemoStore::of("--listen", Some(&text), config::LISTEN).unwrap();
        assert_eq!((place.address, place.taken), (address, None));
        drop(other);
        let place = DemoStore::of("--listen", None, &text).unwrap();
        assert_eq!((place.address, place.taken), (address, None));
    }

    #[test]
    fn an_address_that_is_none_is_refused_by_the_name_of_its_flag() {
        let failure = DemoStore::of("--admin-listen", Some("8081"), config::ADMIN_LISTEN).unwrap_err();
        assert!(failure.message.starts_with("`--admin-listen` must be"), "{}", failure.message);
    }

    #[test]
    fn what_listens_everywhere_is_reached_on_loopback() {
        for (listens, is_at) in
            [("0.0.0.0:80", "127.0.0.1:80"), ("[::]:80", "[::1]:80"), ("10.0.0.1:8", "10.0.0.1:8")]
        {
            assert_eq!(reachable(listens.parse().unwrap()), is_at.parse().unwrap());
        }
    }
}
