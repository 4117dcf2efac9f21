//! `ibid demo`: a gateway in front of an API that knows nothing of it, and the reference application with its provider, on
//! stores that are deleted at the end. Prints lines to paste.

mod api;
mod application;
mod processor;
mod script;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};

use futures_util::FutureExt as _;
use tokio::net::TcpListener;

use crate::args::{DemoArgs, GatewayArgs};
use crate::config::{self, Config, EnvVars, StoreUrl};
use crate::gateway::Gateway;
use crate::open_store::open_store;
use crate::output::{Failure, Failures, print_line};
use application::Application;
use script::{Scene, quote};

/// Runs the demo until the process receives a stop signal.
pub(crate) fn run(args: &DemoArgs, out: &mut dyn Write) -> Result<(), Failures> {
    let log = config::LogSettings::of_process()?;
    let listen = ListenAddress::of("--listen", args.listen.as_deref(), config::LISTEN)?;
    let admin = ListenAddress::of("--admin-listen", args.admin_listen.as_deref(), config::ADMIN_LISTEN)?;
    let payments = ListenAddress::of("--payments-listen", args.payments_listen.as_deref(), PAYMENTS_LISTEN)?;
    let provider = ListenAddress::of("--provider-listen", args.provider_listen.as_deref(), PROVIDER_LISTEN)?;
    let _spans = crate::logging(&log)?;
    let folder = tempfile::Builder::new()
        .prefix("ibid-demo-")
        .tempdir()
        .map_err(|error| Failure::world("cannot make a temporary folder").because(error))?;
    let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let store = DemoStore::of(args.store.as_deref(), file("ibid.db"))?;
    // Dropped before the folder, so that no task still writes there.
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::world("cannot start the runtime").because(error))?;
    runtime.block_on(async {
        let (api, api_address) = listener().await?;
        tokio::spawn(api::serve(api));
        let config = gateway_config(&listen, &admin, api_address, &store.url)?;
        let gateway = Gateway::start(&config, open_store(&config.store, true).await?).await?;
        let (public_address, admin_address) = gateway.addresses()?;
        let stop = crate::stop_signal()?.boxed().shared();
        let application =
            Application::start(provider.address, payments.address, &file("payments.db"), stop.clone())
                .await?;
        let scene = Scene {
            public: reachable(public_address),
            admin: reachable(admin_address),
            api: api_address,
            payments: reachable(application.payments_address()),
            provider: reachable(application.processor_address()),
            taken: [listen, admin, payments, provider]
                .into_iter()
                .filter_map(|listen| listen.taken)
                .collect(),
            ibid: program(),
            store,
        };
        print_line(out, scene.script())?;
        let ((), result) = tokio::join!(gateway.run(stop), application.wait_for_end());
        Ok(result?)
    })
}

/// The store of the demo's gateway, and how the script names it.
struct DemoStore {
    url: String,
    /// The URL as a word of a shell command.
    word: String,
    /// Added to every key, so that a second run on a store that stays is not answered with the first one's responses.
    key_suffix: String,
}

impl DemoStore {
    /// Returns the store at the given URL, or one in `file`.
    fn of(given: Option<&str>, file: String) -> Result<DemoStore, Failure> {
        let Some(url) = given.filter(|text| !text.is_empty()) else {
            return Ok(DemoStore { word: quote(&file), url: file, key_suffix: String::new() });
        };
        let parsed = StoreUrl::parse(url).map_err(|mut failure| {
            failure.message = format!("`--store` {}", failure.message);
            failure
        })?;
        if parsed == StoreUrl::Memory {
            return Err(Failure::usage("`--store` names a store in memory")
                .hint("the demo's operator looks at the store from another process: leave the flag out"));
        }
        // The script is printed, and a password is not.
        let has_user = url.split(['/', '?']).any(|part| part.contains('@'));
        let word = if has_user { "\"$STORE\"".to_owned() } else { quote(url) };
        let key_suffix = format!("-{}", jiff::Timestamp::now().as_millisecond());
        Ok(DemoStore { url: url.to_owned(), word, key_suffix })
    }
}

/// The address that a part of the demo listens on.
#[derive(Debug)]
struct ListenAddress {
    address: SocketAddr,
    /// The default address, if another program uses it.
    taken: Option<SocketAddr>,
}

impl ListenAddress {
    /// Returns the given address unchanged. If none is given and another program uses the default, chooses a free port.
    fn of(flag: &str, given: Option<&str>, default: &str) -> Result<ListenAddress, Failure> {
        if let Some(text) = given.filter(|text| !text.is_empty()) {
            let address = config::parse_address(text).map_err(|mut failure| {
                failure.message = format!("`{flag}` {}", failure.message);
                failure
            })?;
            return Ok(ListenAddress { address, taken: None });
        }
        let address = config::parse_address(default)?;
        Ok(match StdListener::bind(address) {
            Ok(_) => ListenAddress { address, taken: None },
            Err(_) => ListenAddress { address: SocketAddr::new(address.ip(), 0), taken: Some(address) },
        })
    }
}

/// Returns the gateway's configuration. It ignores files and variables, because they don't belong to the demo.
fn gateway_config(
    listen: &ListenAddress,
    admin: &ListenAddress,
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

/// Binds a free port on loopback.
async fn listener() -> Result<(TcpListener, SocketAddr), Failure> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    bound
        .and_then(|listener| listener.local_addr().map(|address| (listener, address)))
        .map_err(|error| Failure::world("cannot listen on loopback").because(error))
}

/// Returns an address to connect to: loopback for a listener on all interfaces.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// Returns this program as a shell finds it: by name if it was called by name, else by its path.
fn program() -> String {
    let by_name = std::env::args().next().is_some_and(|name| !name.contains(std::path::is_separator));
    match std::env::current_exe() {
        Ok(path) if !by_name => quote(&path.display().to_string()),
        _ => "ibid".to_owned(),
    }
}

/// Default address of the `payments` application.
const PAYMENTS_LISTEN: &str = "127.0.0.1:8090";

/// Default address of the simulated card processor.
const PROVIDER_LISTEN: &str = "127.0.0.1:8091";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_default_port_that_is_taken_gives_way() {
        let other = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = other.local_addr().unwrap();
        let text = address.to_string();
        let listen = ListenAddress::of("--listen", None, &text).unwrap();
        assert_eq!((listen.address.port(), listen.taken), (0, Some(address)));
        let listen = ListenAddress::of("--listen", Some(&text), config::LISTEN).unwrap();
        assert_eq!((listen.address, listen.taken), (address, None));
        drop(other);
        let listen = ListenAddress::of("--listen", None, &text).unwrap();
        assert_eq!((listen.address, listen.taken), (address, None));
    }

    #[test]
    fn an_address_that_is_none_is_refused_by_the_name_of_its_flag() {
        let failure = ListenAddress::of("--admin-listen", Some("8081"), config::ADMIN_LISTEN).unwrap_err();
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
