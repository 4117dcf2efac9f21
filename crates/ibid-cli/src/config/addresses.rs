//! Reads the addresses: the upstream's URL, and where the gateway listens.

use std::net::SocketAddr;

use http::Uri;
use http::uri::Scheme;

use super::toml_reader::{Reader, Section};
use super::{at, non_empty, setting};
use crate::args::GatewayArgs;
use crate::output::Failure;

pub(super) fn read_upstream(
    root: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    flags: &GatewayArgs,
) -> Option<Uri> {
    let flag = non_empty(&flags.upstream).map(|value| (value, "--upstream", "IBID_UPSTREAM"));
    let Some((text, position, line)) = setting(root, reader, "upstream", flag) else {
        if root.line_of("upstream").is_none() {
            let failure = Failure::usage("the gateway needs an upstream: the API behind it");
            let hint = "give `--upstream http://127.0.0.1:3000`, `IBID_UPSTREAM`, or `upstream` in the file";
            reader.keep(0, failure.hint(hint));
        }
        return None;
    };
    match parse_upstream(&text) {
        Ok(uri) => Some(uri),
        Err(failure) => {
            reader.keep(line, at(&position, failure));
            None
        }
    }
}

pub(super) fn parse_upstream(text: &str) -> Result<Uri, Failure> {
    let form = "write for example `http://127.0.0.1:3000`";
    let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    // Messages don't repeat the text, because it may contain a password.
    if !matches!(scheme.as_deref(), Some("http" | "https")) {
        return Err(Failure::usage("must be an absolute `http://` or `https://` URL")
            .because("it does not begin with `http://` or `https://`")
            .hint(form));
    }
    let uri: Uri = text.parse().map_err(|error| Failure::usage("is not a URL").because(error).hint(form))?;
    if uri.query().is_some() || text.contains('#') {
        return Err(Failure::usage("must not have a query or a fragment: requests bring their own"));
    }
    match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            Err(Failure::usage("must not have a user or password: requests bring their own credentials"))
        }
        Some(authority) if !authority.host().is_empty() => Ok(uri),
        _ => Err(Failure::usage("must name a host").hint(form)),
    }
}

pub(super) fn read_address(
    root: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    key: &'static str,
    flag: &'static str,
    variable: &'static str,
    value: &Option<String>,
    default: &'static str,
) -> Option<SocketAddr> {
    let value = setting(root, reader, key, non_empty(value).map(|value| (value, flag, variable)));
    let (text, position, line) = match value {
        Some(value) => value,
        // The key exists with another type, which has been reported.
        None if root.line_of(key).is_some() => return None,
        None => (default.to_owned(), String::new(), 0),
    };
    let parsed = parse_address(&text);
    if let Err(failure) = &parsed {
        reader.keep(line, at(&position, failure.clone()));
    }
    parsed.ok()
}

/// Parses an address and a port. Refuses `localhost` and a bare port, because the address would be a guess.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, Failure> {
    text.parse().map_err(|_| {
        Failure::usage(format!("must be an address and a port, not `{text}`"))
            .hint("write for example `127.0.0.1:8080`, `0.0.0.0:8080` or `[::]:8080`")
    })
}

pub(super) fn check_addresses(
    listen: SocketAddr,
    admin: SocketAddr,
    upstream: Option<&Uri>,
    reader: &Reader<'_>,
    warnings: &mut Vec<String>,
) {
    if listen == admin && listen.port() != 0 {
        let failure = Failure::usage(format!("`listen` and `admin_listen` are both `{listen}`"));
        reader.keep(0, failure.hint("give each a different address"));
    }
    let usual_port = if upstream.and_then(Uri::scheme) == Some(&Scheme::HTTPS) { 443 } else { 80 };
    let port = upstream.and_then(|uri| uri.port_u16()).unwrap_or(usual_port);
    let host = upstream.and_then(Uri::host).unwrap_or("").trim_matches(['[', ']']);
    let is_this_host = host == "localhost" && listen.ip().is_loopback();
    let is_self = is_this_host || host.parse() == Ok(listen.ip());
    if is_self && port == listen.port() {
        let failure = Failure::usage(format!("`upstream` is `{listen}`, where the gateway itself listens"));
        reader
            .keep(0, failure.hint("every request would loop back to the gateway: give the API another port"));
    }
    if !admin.ip().is_loopback() {
        warnings.push(format!(
            "`admin_listen` is `{admin}`, which other hosts may reach: keep it where only operators can connect"
        ));
    }
}
