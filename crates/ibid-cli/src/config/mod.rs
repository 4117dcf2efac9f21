//! The gateway's configuration: flags over variables over the file over defaults, checked before anything starts.
//!
//! It opens only the file and the secrets and certificates that the file names, so `ibid config check` can run anywhere.
//! One function here reads each table; larger tables have separate modules.

use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Method, Uri};
use ibid::Settings;
use ibid::upkeep::{Retention, Schedule};
use ibid_core::fingerprint::Secret;
use ibid_core::policy::{BindRule, PathRule, Policy};
use ibid_core::store::Tiers;
use toml::de::DeTable;

use crate::args::{DoctorArgs, GatewayArgs, ReconcileArgs, StoreArgs};
use crate::gateway::tenant::TenantConfig;
use crate::gateway::upstream_tls::TlsSettings;
use crate::output::{Failure, Failures};
use addresses::{check_addresses, read_address, read_upstream};
use policy::Overlay;
use route::RouteDraft;
use store_section::{read_store, read_store_section};
use tenant::read_tenant;
use toml_reader::{Reader, Section};
use warnings::ConfigWarning;

mod addresses;
mod cors;
pub(crate) mod defaults;
mod env;
mod fingerprint;
mod forward_key;
mod front;
mod header_names;
mod hook;
mod hook_target;
mod key_from;
pub(crate) mod policy;
mod proof;
#[cfg(test)]
mod reference;
mod route;
pub(crate) mod schema;
mod server;
mod store;
mod store_section;
mod tenant;
#[cfg(test)]
mod tests;
mod toml_reader;
pub(crate) mod units;
mod upstream_tls;
mod warnings;

#[cfg(feature = "demo")]
pub(crate) use addresses::parse_address;
pub(crate) use env::{EnvVars, LogSettings};
pub(crate) use front::FrontConfig;
pub(crate) use server::ServerConfig;
pub(crate) use store::StoreUrl;

/// The complete configuration of a gateway.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The API behind the gateway: absolute, `http` or `https`, without a query.
    pub(crate) upstream: Uri,
    /// TLS settings of an `https` upstream: trusted authorities, client certificate, server name.
    pub(crate) upstream_tls: TlsSettings,
    /// The address that clients connect to.
    pub(crate) listen: SocketAddr,
    /// The address that operators connect to.
    pub(crate) admin_listen: SocketAddr,
    /// Requires HTTP/2 of the upstream.
    pub(crate) upstream_http2: bool,
    /// The store of the records.
    pub(crate) store: StoreUrl,
    /// Time-outs and cache of the store.
    pub(crate) store_options: StoreOptions,
    /// A cache in front of the store, which all gateways share.
    pub(crate) front: Option<FrontConfig>,
    /// The source of the tenant of a request.
    pub(crate) tenant: TenantConfig,
    /// The rules of every guarded request that matches no route.
    pub(crate) defaults: Policy,
    /// Longest wait of an unguarded request for the response head; `None` sets no limit.
    pub(crate) pass_timeout: Option<Duration>,
    /// The routes, in the order of the file.
    pub(crate) routes: Vec<RouteConfig>,
    /// Sources of webhooks that settle unknown outcomes.
    pub(crate) hooks: Vec<ibid::http::hooks::Hook>,
    /// Intervals and retention of the chores.
    pub(crate) upkeep: Upkeep,
    /// Limits of the public listener.
    pub(crate) server: ServerConfig,
    /// Origins whose scripts may read the gateway's own responses.
    pub(crate) cors: ibid::http::Cors,
    /// Fingerprint secrets, newest first; if empty, the store generates and keeps one.
    pub(crate) secrets: Vec<Vec<u8>>,
    /// Bearer token of the admin API; without it there is no admin API.
    pub(crate) admin_token: Option<ibid_console::Token>,
    /// The file that was read, if any.
    pub(crate) file: Option<PathBuf>,
    /// Warnings about settings that are allowed, one line each.
    pub(crate) warnings: Vec<String>,
}

/// One `[[route]]` with its complete rules.
#[derive(Clone, Debug)]
pub(crate) struct RouteConfig {
    /// The methods that it matches: any except GET, HEAD, OPTIONS, TRACE, QUERY and CONNECT.
    pub(crate) methods: Vec<Method>,
    /// The path pattern in the syntax of axum and matchit 0.8.
    pub(crate) pattern: String,
    /// If `false`, its requests pass untouched.
    pub(crate) guard: bool,
    /// The result of all layers.
    pub(crate) policy: Policy,
    /// Its line in the file.
    pub(crate) line: usize,
}

/// Time-outs and cache of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreOptions {
    pub(crate) begin_timeout: Duration,
    pub(crate) finish_wait: Duration,
    pub(crate) cache_bytes: u64,
    pub(crate) cache_ttl: Duration,
    pub(crate) identity_valid_for: Duration,
}

/// Intervals and retention of the chores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Upkeep {
    pub(crate) run: bool,
    pub(crate) sweep_every: Duration,
    pub(crate) reap_every: Duration,
    pub(crate) keep: Retention,
    pub(crate) reconcile_every: Duration,
    pub(crate) duplicate_percent: u32,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        let usual = Settings::default();
        StoreOptions {
            begin_timeout: usual.begin_timeout,
            finish_wait: usual.finish_wait,
            cache_bytes: usual.cache_bytes,
            cache_ttl: usual.cache_ttl,
            identity_valid_for: usual.identity_valid_for,
        }
    }
}

impl Default for Upkeep {
    fn default() -> Upkeep {
        let usual = Schedule::default();
        Upkeep {
            run: true,
            sweep_every: usual.sweep_every,
            reap_every: usual.reap_every,
            keep: usual.keep,
            reconcile_every: usual.reconcile_every,
            // The file uses whole percents, the library a rate from 0 to 1.
            duplicate_percent: (Settings::default().duplicate_rate * 100.0).round() as u32,
        }
    }
}

impl Config {
    /// Combines flags, variables and the file, and checks the result.
    pub(crate) fn load(flags: &GatewayArgs, variables: &EnvVars) -> Result<Config, Failures> {
        let file = read_file(flags.config.as_deref())?;
        let name = file.as_ref().map(|(path, _)| path.display().to_string()).unwrap_or_default();
        let text = file.as_ref().map_or("", |(_, text)| text.as_str());
        let mut config = Config::read(flags, variables, &name, text)?;
        config.file = file.map(|(path, _)| path);
        Ok(config)
    }

    /// Like [`Config::load`], but gets the file's text from the caller.
    pub(crate) fn read(
        flags: &GatewayArgs,
        variables: &EnvVars,
        file: &str,
        text: &str,
    ) -> Result<Config, Failures> {
        let (document, errors) = DeTable::parse_recoverable(text);
        let reader = Reader::new(file, text);
        for error in errors {
            reader.refuse(reader.line_at(error.span().map_or(0, |span| span.start)), error.message());
        }
        // After a syntax error the rest may have been misread, so report nothing else.
        if let Some(failures) = reader.failures() {
            return Err(failures);
        }
        let mut root = Section::new(&reader, "", Some(document.get_ref()), 1);
        let config = assemble(&mut root, &reader, flags, variables);
        root.finish();
        match (reader.failures(), config) {
            (None, Some(config)) => Ok(config),
            (Some(failures), _) => Err(failures),
            // A setting is missing only if an error was recorded.
            (None, None) => Err(Failure::usage("the configuration can't be read").into()),
        }
    }
}

/// Returns the store that an operator's command opens: by flag, variable, the file's `store.url`, or the default.
pub(crate) fn store_of(args: &StoreArgs) -> Result<StoreUrl, Failures> {
    if let Some(given) = non_empty(&args.store) {
        return StoreUrl::parse(given).map_err(|failure| at("`--store` (or `IBID_STORE`)", failure).into());
    }
    // Reads only this key: an operator may inspect records even while the rest of the file is broken.
    from_file(args, |root, reader| read_store(&mut root.section("store", "store"), reader, None))
        .map(Option::unwrap_or_default)
}

/// An upstream with its protocol and TLS settings.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamSettings {
    pub(crate) url: Uri,
    pub(crate) http2: bool,
    pub(crate) tls: TlsSettings,
}

/// Returns the upstream of `ibid reconcile`: by flag, variable or file.
pub(crate) fn upstream_of(args: &ReconcileArgs) -> Result<UpstreamSettings, Failures> {
    let upstream =
        from_file(&args.store, |root, reader| read_upstream_settings(root, reader, &args.upstream))?;
    // It is missing only if an error was recorded.
    upstream.ok_or_else(|| Failure::usage("there is no upstream").into())
}

/// Returns the upstream of `ibid doctor`, if one is named.
pub(crate) fn upstream_if_named(args: &DoctorArgs) -> Result<Option<UpstreamSettings>, Failures> {
    from_file(&args.store, |root, reader| {
        let is_named = non_empty(&args.upstream).is_some() || root.text("upstream").is_some();
        if is_named { read_upstream_settings(root, reader, &args.upstream) } else { None }
    })
}

/// Returns the front of `ibid doctor`, if the variable or the file names one. Only the gateway judges its time-out.
pub(crate) fn front_of(args: &StoreArgs, variables: &EnvVars) -> Result<Option<FrontConfig>, Failures> {
    from_file(args, |root, reader| front::read(root, reader, variables, Duration::MAX))
}

fn read_upstream_settings(
    root: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    flag: &Option<String>,
) -> Option<UpstreamSettings> {
    let flags = GatewayArgs { upstream: flag.clone(), ..GatewayArgs::default() };
    let url = read_upstream(root, reader, &flags);
    let http2 = root.boolean("upstream_http2").unwrap_or(false);
    let tls = upstream_tls::read(root, reader, url.as_ref());
    Some(UpstreamSettings { url: url?, http2, tls })
}

/// Returns how long the reaper keeps effects and history after their record, according to the file.
pub(crate) fn keep_of(args: &StoreArgs) -> Result<Retention, Failures> {
    from_file(args, |root, _| read_keep(&mut root.section("upkeep", "upkeep")))
}

/// Returns the number of fingerprint secrets that the variable or the file sets.
pub(crate) fn secrets_of(args: &StoreArgs, variables: &EnvVars) -> Result<usize, Failures> {
    from_file(args, |root, reader| read_secrets(root, reader, variables).len())
}

/// Reads settings for an operator's command from the file. Without a file, reads from an empty one.
fn from_file<T>(
    args: &StoreArgs,
    read: impl FnOnce(&mut Section<'_, '_>, &Reader<'_>) -> T,
) -> Result<T, Failures> {
    let (path, text) = read_file(args.config.as_deref())?.unwrap_or_default();
    let file = path.display().to_string();
    let reader = Reader::new(&file, &text);
    let document = DeTable::parse(&text).map_err(|error| {
        let line = reader.line_at(error.span().map_or(0, |span| span.start));
        Failure::usage(format!("{}: {}", reader.position(line), error.message()))
    })?;
    let value = read(&mut Section::new(&reader, "", Some(document.get_ref()), 1), &reader);
    reader.failures().map_or(Ok(value), Err)
}

/// Combines the settings. Reading continues after an error, and `None` means that there was one.
fn assemble(
    root: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    flags: &GatewayArgs,
    variables: &EnvVars,
) -> Option<Config> {
    let mut warnings = env::misspelt(&variables.names);
    let upstream = read_upstream(root, reader, flags);
    let listen = read_address(root, reader, "listen", "--listen", "IBID_LISTEN", &flags.listen, LISTEN);
    let admin_listen = read_address(
        root,
        reader,
        "admin_listen",
        "--admin-listen",
        "IBID_ADMIN_LISTEN",
        &flags.admin_listen,
        ADMIN_LISTEN,
    );
    let file_http2 = root.boolean("upstream_http2");
    let upstream_tls = upstream_tls::read(root, reader, upstream.as_ref());
    let (store, store_options) = read_store_section(root, reader, flags);
    let front = front::read(root, reader, variables, store_options.begin_timeout);
    let tenant = read_tenant(root, reader, flags, &mut warnings);
    let one_tenant = tenant.as_ref().is_none_or(TenantConfig::is_none);
    let (defaults, pass_timeout, routes) = read_routes(root, reader, flags, one_tenant, &mut warnings);
    key_from::check_tenant(tenant.as_ref(), &defaults, &routes, reader);
    let tiers = store.as_ref().map_or(Tiers::ALL, StoreUrl::tiers);
    check_tiers(tiers, &defaults, &routes, reader);
    let hooks = hook::read_all(root, reader, one_tenant, &defaults, &routes, tiers.sql);
    let secrets = read_secrets(root, reader, variables);
    let admin_token = read_admin_token(reader, variables);
    let upkeep = read_upkeep(root);
    let policies = routes.iter().filter(|route| route.guard).map(|route| &route.policy).chain([&defaults]);
    let largest_body = policies.map(|policy| policy.max_request_body).max();
    let server = ServerConfig::read(root, reader, largest_body.unwrap_or(0), &mut warnings);
    let cors = cors::read(root, reader);
    warnings::tenants(tenant.as_ref(), &routes, &mut warnings);
    refuse_limits(root, reader);
    if let (Some(listen), Some(admin)) = (listen, admin_listen) {
        check_addresses(listen, admin, upstream.as_ref(), reader, &mut warnings);
    }
    if store == Some(StoreUrl::Memory) {
        warnings.push("the store is `memory:`: every record is gone when the process ends".to_owned());
    }
    Some(Config {
        upstream: upstream?,
        listen: listen?,
        admin_listen: admin_listen?,
        upstream_tls,
        upstream_http2: flags.upstream_http2.or(file_http2).unwrap_or(false),
        store: store?,
        store_options,
        front,
        tenant: tenant?,
        defaults,
        pass_timeout,
        routes,
        hooks,
        upkeep,
        server,
        cors,
        secrets,
        admin_token,
        file: None,
        warnings,
    })
}

/// Reads the named file, or `ibid.toml` if it exists.
fn read_file(named: Option<&Path>) -> Result<Option<(PathBuf, String)>, Failure> {
    let named = named.filter(|path| !path.as_os_str().is_empty());
    let path = named.unwrap_or(Path::new(FILE));
    let refused = |cause: &dyn fmt::Display| {
        Failure::usage(format!("cannot read the configuration `{}`", path.display())).because(cause)
    };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => return Ok(None),
        Err(error) => return Err(refused(&error).hint("name the file with `--config` or `IBID_CONFIG`")),
    };
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| refused(&error))?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(refused(&"it is larger than 1MiB"));
    }
    Ok(Some((path.to_owned(), text)))
}

/// Returns the value of a flag or variable unless it is empty: many tools unset a variable by making it empty.
fn non_empty(value: &Option<String>) -> Option<&str> {
    value.as_deref().filter(|text| !text.is_empty())
}

/// Prefixes a failure's message with the setting's position.
fn at(position: &str, mut failure: Failure) -> Failure {
    failure.message = format!("{position} {}", failure.message);
    failure
}

/// Returns a text setting from the flag or else from the file, with its position in words and its line (0 for a flag).
fn setting(
    section: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    key: &'static str,
    flag: Option<(&str, &str, &str)>,
) -> Option<(String, String, usize)> {
    let in_file = section.text(key);
    if let Some((value, flag, variable)) = flag {
        return Some((value.to_owned(), format!("`{flag}` (or `{variable}`)"), 0));
    }
    let line = section.line_of(key)?;
    Some((in_file?, format!("{}: `{key}`", reader.position(line)), line))
}

/// Refuses routes that need what the store lacks.
fn check_tiers(tiers: Tiers, defaults: &Policy, routes: &[RouteConfig], reader: &Reader<'_>) {
    if let Some(problem) = tiers.refusal(defaults) {
        reader.refuse(0, format!("`[defaults]` {problem}"));
    }
    for route in routes.iter().filter(|route| route.guard) {
        if let Some(problem) = tiers.refusal(&route.policy) {
            reader.refuse(route.line, format!("`{}` {problem}", route.pattern));
        }
    }
}

fn read_routes(
    root: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    flags: &GatewayArgs,
    one_tenant: bool,
    warnings: &mut Vec<String>,
) -> (Policy, Option<Duration>, Vec<RouteConfig>) {
    let mut section = root.section("defaults", "defaults");
    let mut base = Overlay::read(&mut section, reader);
    if let Some(word) = non_empty(&flags.key) {
        base = base.clone().with_key(word).unwrap_or_else(|| {
            let problem = format!("`--key` (or `IBID_KEY`) must be `required` or `optional`, not `{word}`");
            reader.keep(0, Failure::usage(problem));
            base
        });
    }
    let pass_timeout = section.positive("pass_timeout");
    let line = section.line.max(1);
    section.finish();
    let defaults = policy::resolve(&[&base]);
    check_policy(&defaults, &[&base], line, reader);
    if defaults.is_exempt() {
        let line = base.lines.get("repeatable").copied().unwrap_or(line);
        let hint = "set it in a `[[route]]`, or choose `profile = \"repeatability\"`";
        reader.refuse_with_hint(
            line,
            "`repeatable = false` in `[defaults]` would exempt every request",
            hint,
        );
    }

    let sections = root.sections("route", "route");
    let drafts: Vec<RouteDraft> =
        sections.into_iter().filter_map(|section| RouteDraft::read(section, reader, one_tenant)).collect();
    route::check_conflicts(&drafts, reader);

    let mut advice = ConfigWarning::new(reader, warnings);
    advice.policy(EVERY_OTHER, line, &defaults, base.retry_horizon);
    advice.hop("`[defaults]`", &base, &defaults);
    let routes = drafts.into_iter().map(|draft| build_route(draft, &base, &mut advice)).collect();
    advice.finish();
    (defaults, pass_timeout, routes)
}

fn build_route(draft: RouteDraft, base: &Overlay, advice: &mut ConfigWarning<'_>) -> RouteConfig {
    let layers = [base, &draft.preset_rules, &draft.rules];
    let mut policy = policy::resolve(&layers);
    let reader = advice.reader;
    policy.reconcile = draft.reconcile.as_ref().map(|rule| rule.build(&draft.pattern, &policy));
    if policy.bind == BindRule::Principal && policy.reconcile.is_some() {
        let problem = "the question of a reconcile rule can't say which principal's key it is about";
        let hint =
            "leave out `bind = \"principal\"`, or the rule: one principal's response could settle another's";
        reader.refuse_with_hint(draft.reconcile_line, problem, hint);
    }
    check_policy(&policy, &layers, draft.reconcile_line, reader);
    // An exempt route has no policy, so its paths are read by the defaults.
    let guard = draft.guard && !policy.is_exempt();
    let path = if guard { policy.path } else { policy::resolve(&[base]).path };
    if path == PathRule::Strict && !ibid_core::path::is_reachable(&draft.pattern, !guard) {
        let problem =
            format!("`match` has the path `{}`, which is refused under `path = \"strict\"`", draft.pattern);
        let hint =
            "write it without empty segments, dot segments, malformed escapes and, on exempt routes, `;`";
        reader.refuse_with_hint(draft.line, problem, hint);
    }
    let horizon = draft.rules.retry_horizon.or(base.retry_horizon);
    advice.route(&draft, &policy, horizon);
    RouteConfig { methods: draft.methods, pattern: draft.pattern, guard, policy, line: draft.line }
}

fn check_policy(policy: &Policy, layers: &[&Overlay], line: usize, reader: &Reader<'_>) {
    if let Err(error) = policy.check() {
        reader.refuse(policy::line_of(&error, layers).unwrap_or(line), error.to_string());
    }
}

fn read_secrets(root: &mut Section<'_, '_>, reader: &Reader<'_>, variables: &EnvVars) -> Vec<Vec<u8>> {
    let mut section = root.section("fingerprint", "fingerprint");
    let in_file = section.texts("secrets");
    let line = section.line_of("secrets").unwrap_or(section.line);
    section.finish();
    let (texts, position, line) = match non_empty(&variables.secrets) {
        Some(list) => {
            let list = list.split(',').map(|text| text.trim().to_owned()).collect();
            (Some(list), "`IBID_SECRETS`".to_owned(), 0)
        }
        None => (in_file, format!("{}: `secrets`", reader.position(line)), line),
    };
    let secrets: Vec<Vec<u8>> = texts.into_iter().flatten().map(String::into_bytes).collect();
    for (at, secret) in secrets.iter().enumerate() {
        let nth = at + 1;
        if secret.len() < Secret::LEN_MIN {
            let failure =
                Failure::usage(format!("{position}: secret {nth} is shorter than {} bytes", Secret::LEN_MIN));
            reader.keep(line, failure.hint("make one with `openssl rand -hex 32`"));
        }
        if secrets[..at].contains(secret) {
            reader.keep(line, Failure::usage(format!("{position}: secret {nth} is there twice")));
        }
    }
    secrets
}

fn read_admin_token(reader: &Reader<'_>, variables: &EnvVars) -> Option<ibid_console::Token> {
    match ibid_console::Token::new(non_empty(&variables.admin_token)?) {
        Ok(token) => Some(token),
        Err(error) => {
            let failure = Failure::usage("`IBID_ADMIN_TOKEN` can't be used").because(error);
            reader.keep(0, failure.hint("make one with `openssl rand -hex 32`"));
            None
        }
    }
}

fn read_upkeep(root: &mut Section<'_, '_>) -> Upkeep {
    let mut section = root.section("upkeep", "upkeep");
    let usual = Upkeep::default();
    let upkeep = Upkeep {
        run: section.boolean("run").unwrap_or(usual.run),
        sweep_every: section.positive("sweep_every").unwrap_or(usual.sweep_every),
        reap_every: section.positive("reap_every").unwrap_or(usual.reap_every),
        keep: read_keep(&mut section),
        reconcile_every: section.positive("reconcile_every").unwrap_or(usual.reconcile_every),
        duplicate_percent: section.percent("duplicate_percent").unwrap_or(usual.duplicate_percent),
    };
    section.finish();
    upkeep
}

fn read_keep(upkeep: &mut Section<'_, '_>) -> Retention {
    Retention::default().with(|keep| {
        keep.effects = upkeep.positive("keep_effects").unwrap_or(keep.effects);
        keep.history = upkeep.positive("keep_history").unwrap_or(keep.history);
    })
}

/// Refuses `[limits]`: silently accepting a limit that is not enforced would be worse than none.
fn refuse_limits(root: &mut Section<'_, '_>, reader: &Reader<'_>) {
    let section = root.section("limits", "limits");
    if section.is_there() {
        let problem = "`[limits]` is not available in this release";
        reader.refuse_with_hint(section.line, problem, "remove the table: no limit would be enforced");
    }
}

/// The file that is read if none is named and it exists.
const FILE: &str = "ibid.toml";

/// Largest file that is read: thousands of routes fit, and a wrong path (a log, a device) does not fill memory.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Default address that clients connect to.
pub(crate) const LISTEN: &str = "127.0.0.1:8080";

/// Default address that operators connect to.
pub(crate) const ADMIN_LISTEN: &str = "127.0.0.1:8081";

/// Name of the guarded requests that match no route, in tables and warnings.
pub(crate) const EVERY_OTHER: &str = "every other guarded request";

/// Description of the requests that pass unguarded besides exempt routes.
pub(crate) const PASSES: &str =
    "GET, HEAD, OPTIONS, TRACE and QUERY, and PUT and DELETE where no route guards them";

const DAY: Duration = Duration::from_secs(24 * 3600);
