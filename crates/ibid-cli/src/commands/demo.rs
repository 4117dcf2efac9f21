//! `ibid demo`: a gateway before an example payments API, on a store that goes when it ends, and lines to paste.
//!
//! All that it prints to stdout is a shell script: comments, and commands that do what the comment above them says.

mod api;

use std::fmt::Write as _;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};

use tokio::net::TcpListener;

use crate::args::{DemoArgs, GatewayArgs};
use crate::config::{self, Config, Variables};
use crate::gateway::Gateway;
use crate::open::open_store;
use crate::output::{Failure, Failures, print_line};

/// Runs the demo until the process is told to stop.
pub(crate) fn run(args: &DemoArgs, out: &mut dyn Write) -> Result<(), Failures> {
    let log = config::Log::of_process()?;
    let listen = Place::of("--listen", args.listen.as_deref(), config::LISTEN)?;
    let admin = Place::of("--admin-listen", args.admin_listen.as_deref(), config::ADMIN_LISTEN)?;
    crate::logging(&log);
    let folder = tempfile::Builder::new()
        .prefix("ibid-demo-")
        .tempdir()
        .map_err(|error| Failure::world("cannot make a temporary folder").because(error))?;
    let store = format!("sqlite:{}", folder.path().join("ibid.db").display());
    // Dropped before the folder: then nobody writes there any more.
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::world("cannot start the runtime").because(error))?;
    runtime.block_on(async {
        let (api, api_address) = listener().await?;
        tokio::spawn(api::serve(api));
        let config = gateway_config(&listen, &admin, api_address, &store)?;
        let gateway = Gateway::start(&config, open_store(&config.store, true).await?).await?;
        let (public_address, admin_address) = gateway.addresses()?;
        let stop = crate::stop_signal()?;
        let scene = Scene {
            public: reachable(public_address),
            admin: reachable(admin_address),
            api: api_address,
            taken: [listen.taken, admin.taken].into_iter().flatten().collect(),
            ibid: program(),
            store,
        };
        print_line(out, scene.script())?;
        gateway.run(stop).await;
        Ok(())
    })
}

/// Where to listen.
#[derive(Debug)]
struct Place {
    address: SocketAddr,
    /// The default that somebody else has.
    taken: Option<SocketAddr>,
}

impl Place {
    /// As given, come what may. Nobody asked for the default, so where that is taken any free port will do.
    fn of(flag: &str, given: Option<&str>, default: &str) -> Result<Place, Failure> {
        if let Some(text) = given.filter(|text| !text.is_empty()) {
            let address = config::parse_address(text).map_err(|mut failure| {
                failure.message = format!("`{flag}` {}", failure.message);
                failure
            })?;
            return Ok(Place { address, taken: None });
        }
        let address = config::parse_address(default)?;
        Ok(match StdListener::bind(address) {
            Ok(_) => Place { address, taken: None },
            Err(_) => Place { address: SocketAddr::new(address.ip(), 0), taken: Some(address) },
        })
    }
}

/// The gateway's own configuration, with nothing but what the demo says: a file that lies about is not the demo's.
fn gateway_config(listen: &Place, admin: &Place, api: SocketAddr, store: &str) -> Result<Config, Failures> {
    let args = GatewayArgs {
        upstream: Some(format!("http://{api}")),
        tenant: Some("none".to_owned()),
        listen: Some(listen.address.to_string()),
        admin_listen: Some(admin.address.to_string()),
        store: Some(store.to_owned()),
        ..GatewayArgs::default()
    };
    Config::read(&args, &Variables::default(), "", "")
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

/// One word to a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What runs where.
struct Scene {
    public: SocketAddr,
    admin: SocketAddr,
    api: SocketAddr,
    taken: Vec<SocketAddr>,
    ibid: String,
    store: String,
}

impl Scene {
    fn script(&self) -> String {
        let Scene { public, admin, api, ibid, .. } = self;
        let mut out = format!(
            "# ibid demo: a gateway on {public} before an example payments API on {api}; its admin\n\
             # pages are on {admin}. Paste these lines into another terminal, in their order.\n"
        );
        for taken in &self.taken {
            let _ = writeln!(out, "# {taken} is taken by another program, so a free port was chosen.");
        }
        let mut act = |says: &str, command: String| {
            let _ = writeln!(out);
            for line in says.lines() {
                let _ = writeln!(out, "# {line}");
            }
            let _ = writeln!(out, "{command}");
        };
        let first = self.pay("order-1", r#"{"customerId":"ann","amountCents":4200,"currency":"EUR"}"#);
        act("A first call. 201: a payment is made.", first.clone());
        act(
            "The same call again, as after a dropped connection. The same 201 with the same id, and\n\
             `idempotent-replayed: true`: no second payment.",
            first,
        );
        act(
            "The same key for another amount. 422: neither answered from the store nor sent on.",
            self.pay("order-1", r#"{"customerId":"ann","amountCents":9900,"currency":"EUR"}"#),
        );
        let slow = r#"{"customerId":"bob","amountCents":1500,"currency":"EUR","simulate":"slow"}"#;
        let slow = self.pay("order-2", slow);
        act(
            "Two at once, to an API that takes 2 seconds. 201 twice with one id: the second waited.",
            format!("( {slow} & {slow} & wait )"),
        );
        let lost = r#"{"customerId":"cat","amountCents":7700,"currency":"EUR","simulate":"lost"}"#;
        let lost = self.pay("order-3", lost);
        act(
            "A lost answer: the API takes the money and cuts the connection. 502 `outcome-unknown`.",
            lost.clone(),
        );
        act("The retry. 409 `outcome-unknown`: nobody knows, so nobody is charged twice.", lost.clone());
        act(
            "What was really paid: 7 requests came, 3 payments were made, one for each key.",
            format!("curl -sS {}", quoted(&format!("http://{public}/payments"))),
        );
        act(
            "What a client may ask about its own key: the unknown one.",
            self.look("/.ibid/keys/order-3?method=POST&path=/payments"),
        );
        act(
            "What the gateway counted.",
            format!("curl -sS {} | grep '^ibid_reserve'", quoted(&format!("http://{admin}/metrics"))),
        );
        act("What an operator sees.", format!("{ibid} keys list --store {}", quoted(&self.store)));
        out.push_str("\n# Ctrl-C here ends the demo and removes its store.");
        out
    }

    /// A payment, with all that comes back.
    fn pay(&self, key: &str, body: &str) -> String {
        let url = quoted(&format!("http://{}/payments", self.public));
        // The last line of an answer has no end of its own, and a prompt behind it is hard to read.
        format!(
            "curl -sS -i -w '\\n' {url} -H 'Idempotency-Key: \"{key}\"' \
             -H 'Content-Type: application/json' -d {}",
            quoted(body)
        )
    }

    fn look(&self, path: &str) -> String {
        format!("curl -sS -w '\\n' {}", quoted(&format!("http://{}{path}", self.public)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_that_is_taken_gives_way_and_an_address_that_was_asked_for_does_not() {
        let other = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = other.local_addr().unwrap();
        let text = address.to_string();
        let place = Place::of("--listen", None, &text).unwrap();
        assert_eq!((place.address.port(), place.taken), (0, Some(address)));
        let place = Place::of("--listen", Some(&text), config::LISTEN).unwrap();
        assert_eq!((place.address, place.taken), (address, None));
        drop(other);
        let place = Place::of("--listen", None, &text).unwrap();
        assert_eq!((place.address, place.taken), (address, None));
    }

    #[test]
    fn an_address_that_is_none_is_refused_by_the_name_of_its_flag() {
        let failure = Place::of("--admin-listen", Some("8081"), config::ADMIN_LISTEN).unwrap_err();
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

    #[test]
    fn a_word_stays_one_word_whatever_is_in_it() {
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
