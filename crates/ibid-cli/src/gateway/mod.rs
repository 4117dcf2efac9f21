//! The gateway: the library's guard around a forwarder, and two listeners.
//!
//! It has no private access to the engine.

pub(crate) mod admin;
mod admission;
mod body;
mod bounds;
pub(crate) mod connect;
mod connections;
mod descriptors;
mod fields;
pub(crate) mod forward;
mod forward_key;
mod identity;
pub(crate) mod next_hop;
mod pass_slots;
mod pass_timeout;
pub(crate) mod reconcile;
mod replies;
pub(crate) mod server;
mod stall;
pub(crate) mod tenant;
pub(crate) mod tls_error;
mod untrusted_hops;
mod upgrade;
mod upstream_connections;
pub(crate) mod upstream_tls;

#[cfg(test)]
mod forward_tests;
#[cfg(test)]
mod listener_tests;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
mod tls_tests;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use ibid::engine::StartError;
use ibid::http::{
    GuardedRequest, IdempotencyLayer, IdempotencyService, MissingIdentityError, PrincipalSource, ReplyBody,
    Routes, Rule, TenantSource,
};
use ibid::upkeep::{self, Schedule};
use ibid::{Ibid, Settings};
use ibid_core::fingerprint::Secret;
use ibid_core::policy::Profile;
use ibid_core::proof::Hop;
use ibid_core::store::{Store, Tiers};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError, JoinHandle};
use tokio::time::Instant;
use tower::Layer;
use tower_service::Service;

use crate::config::Config;
use crate::output::Failure;
use admission::GuardedSlots;
use body::ClientBody;
use bounds::Bound;
use connections::Connection;
use descriptors::Sockets;
use fields::RequestFields;
use forward::{ForwardBody, Forwarder};
use next_hop::HopNotice;
use pass_slots::PassSlots;
use pass_timeout::{PassProgress, ProgressBody};
use replies::KeptForReply;
use server::{ListenerState, ServerLimits};
use stall::{StallWatch, StallingBody};
use tenant::TenantConfig;
use untrusted_hops::UntrustedHops;
use upgrade::UpgradeRequest;
use upstream_connections::UpstreamConnections;

/// A gateway whose ports are bound and whose store answers.
pub(crate) struct Gateway {
    public: TcpListener,
    admin: TcpListener,
    app: Gate,
    ibid: Ibid,
    metrics: admin::Metrics,
    console: Option<axum::Router>,
    limits: ServerLimits,
    door: ListenerState,
    /// `None` if other processes run the upkeep of the store.
    schedule: Option<Schedule>,
}

impl Gateway {
    /// Binds the ports and starts the engine on the store. The gateway is then ready to run.
    pub(crate) async fn start(config: &Config, store: Arc<dyn Store>) -> Result<Gateway, Failure> {
        let routes = routes(config)?;
        let refused = |error| Failure::usage("the store can't serve these routes").because(error);
        routes.check_store(Tiers::of(&*store)).map_err(refused)?;
        let (public, admin) =
            (bind(config.listen, "--listen").await?, bind(config.admin_listen, "--admin-listen").await?);
        let mut metrics = admin::Metrics::install()?;
        let (ibid, secret) = identity::start(config, &routes, store).await?;
        let sockets = fit_sockets(&config.server);
        let limits = ServerLimits {
            connections_max: sockets.connections as usize,
            ..ServerLimits::of(&config.server)
        };
        let door = ListenerState::new(&limits);
        let bounds = Bounds::new(config, &sockets, &door);
        let notice = Arc::new(HopNotice::besides(hops(config)));
        let forwarder = |connections: &UpstreamConnections| {
            let upstream = config.upstream.clone();
            let tls = &config.upstream_tls;
            Forwarder::with_connections(upstream, config.upstream_http2, tls, connections.clone())
                .map(|forwarder| forwarder.naming_hops(Arc::clone(&notice)))
                .map_err(|error| Failure::usage("the upstream can't be used").because(error))
        };
        let guarded = forwarder(&bounds.upstream_guarded)?;
        ibid.reconcile_with(Arc::new(reconcile::UpstreamLookup(guarded.clone())));
        let upstream = Upstream(Arc::new(UpstreamParts {
            guarded,
            passed: forwarder(&bounds.upstream_passed)?,
            slots: Arc::clone(&bounds.passed),
            pass_timeout: config.pass_timeout,
            stall_for: config.server.stall_timeout,
        }));
        let layer = IdempotencyLayer::with_routes(ibid.clone(), tenants(&config.tenant, &secret), routes)
            .principals(principals(&secret))
            .body_timeout(config.server.body_timeout)
            .admission(Arc::clone(&bounds.guarded) as Arc<dyn ibid::http::Admission>)
            .cors(config.cors.clone())
            .hooks(config.hooks.clone())
            .map_err(|error| Failure::usage("the hooks can't be used").because(error))?
            .without_held_attempts()
            .resumes(upstream.clone());
        let policies = config.routes.iter().map(|route| &route.policy).chain([&config.defaults]);
        let app = Gate {
            guard: layer.layer(upstream),
            rules: Arc::new(GateRules {
                tenant: config.tenant.clone(),
                untrusted: UntrustedHops::default(),
                fields: RequestFields::new(&config.tenant, policies),
                profile: config.defaults.profile,
            }),
        };
        bounds::init_counters();
        metrics.before_each_page(move || bounds.show());
        if !config.upkeep.run {
            tracing::warn!(
                "upkeep is off: lapsed, unknown, accepted and expired records are left to other processes"
            );
        }
        let schedule = Schedule::default().with(|schedule| {
            schedule.sweep_every = config.upkeep.sweep_every;
            schedule.reap_every = config.upkeep.reap_every;
            schedule.reconcile_every = config.upkeep.reconcile_every;
            schedule.keep = config.upkeep.keep;
        });
        let schedule = config.upkeep.run.then_some(schedule);
        let console = config.admin_token.clone().map(|token| ibid_console::router(&ibid, token));
        Ok(Gateway { public, admin, app, ibid, metrics, console, limits, door, schedule })
    }

    /// Returns the addresses that clients and operators connect to, with the ports that the system chose.
    pub(crate) fn addresses(&self) -> Result<(SocketAddr, SocketAddr), Failure> {
        let of = |listener: &TcpListener| {
            listener
                .local_addr()
                .map_err(|error| Failure::world("cannot read a listener's address").because(error))
        };
        Ok((of(&self.public)?, of(&self.admin)?))
    }

    /// Serves until `shutdown`, then drains: running requests may finish until the drain's deadline.
    pub(crate) async fn run(self, shutdown: impl Future<Output = ()>) {
        let (draining, drained) = watch::channel(false);
        let pages = admin::Pages::new(self.ibid.clone(), self.metrics, self.console, draining.subscribe());
        let admin = tokio::spawn(server::serve(self.admin, pages, ADMIN_LIMITS, until(drained.clone())));
        let chores = self.schedule.map(|schedule| tokio::spawn(upkeep::run(self.ibid.clone(), schedule)));
        let chores = chores.map(|chores| {
            let handle = chores.abort_handle();
            tokio::spawn(report_end_of(chores));
            handle
        });
        let stop_requested_at = std::cell::Cell::new(None);
        let shutdown = async {
            shutdown.await;
            tracing::info!("draining");
            stop_requested_at.set(Some(Instant::now()));
            // Another node, or this one after its next start, delivers requests that are accepted from here on.
            chores.iter().for_each(AbortHandle::abort);
            draining.send_replace(true);
        };
        let stats = server::serve_behind(self.door, self.public, self.app, self.limits, shutdown).await;
        // Runs without a client may use the rest of the drain's time. Writes that wait for the store get at least
        // `SETTLE_FOR`.
        let drained_at = stop_requested_at.get().map_or_else(Instant::now, |at| at + self.limits.drain_for);
        let until = drained_at.max(Instant::now() + SETTLE_FOR);
        let quiet = tokio::time::timeout_at(until, self.ibid.settled()).await.is_ok();
        admin.abort();
        tracing::info!(finished = stats.finished, cut = stats.cut, quiet, "stopped");
    }
}

/// Logs an end of the chores that was not asked for: lapsed, unknown, accepted and expired records then stay as they are.
async fn report_end_of(chores: JoinHandle<()>) {
    let ended = chores.await;
    if !ended.as_ref().is_err_and(JoinError::is_cancelled) {
        tracing::error!(?ended, "upkeep ended; restart this process, or leave upkeep to another");
    }
}

/// The outermost service: adds what only the gateway knows to the request, and removes untrusted fields.
#[derive(Clone)]
struct Gate {
    guard: IdempotencyService<Upstream>,
    rules: Arc<GateRules>,
}

/// Rules about which fields of a request are trusted. One `Arc` holds them all, because each request clones the gate.
pub(crate) struct GateRules {
    tenant: TenantConfig,
    untrusted: UntrustedHops,
    fields: RequestFields,
    profile: Profile,
}

impl GateRules {
    /// Removes fields that this client may not set, and adds the client's address.
    fn clean(&self, headers: &mut HeaderMap, connection: &Connection) {
        let peer = connection.peer.ip();
        if let Some(field) = self.tenant.strip_untrusted(headers, peer) {
            self.untrusted.report(field, peer);
        }
        if let Some(field) = self.fields.clean(headers, self.tenant.trusts(peer)) {
            self.untrusted.report(&field, peer);
        }
        // Here and not in the forwarder, because a request that is delivered later no longer has its connection.
        forward::mark_peer(headers, &connection.peer_field);
    }

    /// Removes protected fields from a request's trailers.
    pub(crate) fn clean_trailers(&self, trailers: &mut HeaderMap) {
        self.fields.clean_trailers(trailers);
    }
}

impl Service<Request<Incoming>> for Gate {
    type Response = Response<ReplyBody<ForwardBody>>;
    type Error = Infallible;
    type Future = <IdempotencyService<Upstream> as Service<Request<ClientBody>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<ClientBody>>::poll_ready(&mut self.guard, cx)
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let (mut head, body) = request.into_parts();
        if let Err(refusal) = fields::check(&head) {
            return Box::pin(std::future::ready(Ok(ibid::http::render_refusal(refusal, self.rules.profile))));
        }
        if let Some(connection) = head.extensions.get::<Arc<Connection>>() {
            self.rules.clean(&mut head.headers, connection);
        }
        let body = ClientBody::Arriving(body, Arc::clone(&self.rules));
        self.guard.call(Request::from_parts(head, body))
    }
}

/// The upstream as the guard's inner service.
///
/// The guard sets the time-out of a guarded request. Unguarded requests pass untouched: they may upgrade, stream both
/// ways and take any time, except that `pass_timeout` bounds the wait for the response head, and that the client may not
/// stop sending before that. Their slots and connections are separate from those of guarded requests.
///
/// One `Arc`: each request, replays included, clones this several times, and all threads contend for the reference counts
/// of its parts.
#[derive(Clone)]
struct Upstream(Arc<UpstreamParts>);

struct UpstreamParts {
    guarded: Forwarder,
    passed: Forwarder,
    slots: Arc<PassSlots>,
    pass_timeout: Option<Duration>,
    stall_for: Duration,
}

impl Service<Request<ClientBody>> for Upstream {
    type Response = Response<ForwardBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<ClientBody>) -> Self::Future {
        if request.extensions().get::<GuardedRequest>().is_some() {
            let call = self.0.guarded.clone().call(request);
            return Box::pin(async move {
                let Ok(mut response) = call.await;
                // On a guarded request, only ibid may set these fields.
                for name in OWN_ANSWER_FIELDS {
                    response.headers_mut().remove(name);
                }
                Ok(response)
            });
        }
        let Some((mut slot, ended)) = self.0.slots.enter() else {
            return Box::pin(std::future::ready(Ok(forward::overload_response())));
        };
        let upgrade_request = UpgradeRequest::take(&mut request);
        let (progress, watch) = (PassProgress::start(), StallWatch::default());
        let request = ClientBody::watch(request).map(|body| {
            let body = ProgressBody::new(body, progress.clone());
            StallingBody::new(body, self.0.stall_for, watch.clone())
        });
        let (call, limit) = (self.0.passed.clone().call(request), self.0.pass_timeout);
        Box::pin(async move {
            let result = tokio::select! {
                biased;
                result = progress.bound(limit, call) => result,
                // Of all requests this one has waited longest for a head, and another request needs its slot.
                Ok(()) = ended => None,
            };
            watch.stop_watching();
            let Some(Ok(mut response)) = result else { return Ok(forward::timeout_response()) };
            if watch.has_stalled() {
                return Ok(forward::stall_response());
            }
            if slot.mark_head() {
                let slot = Arc::new(slot);
                if let Some(upgrade_request) = upgrade_request {
                    upgrade_request.fulfil(&mut response, Arc::clone(&slot));
                }
                response.extensions_mut().insert(KeptForReply(slot));
            }
            Ok(response)
        })
    }
}

/// The gateway's bounds, as its metrics show them.
struct Bounds {
    door: ListenerState,
    guarded: Arc<GuardedSlots>,
    passed: Arc<PassSlots>,
    upstream_guarded: UpstreamConnections,
    upstream_passed: UpstreamConnections,
}

impl Bounds {
    fn new(config: &Config, sockets: &Sockets, door: &ListenerState) -> Bounds {
        let server = &config.server;
        let passed = Arc::new(PassSlots::new(sockets.upstream_passed as usize));
        let slow = Arc::clone(&passed);
        door.connections.when_all_are_busy(move || slow.end_longest_waiting(BUSY_FOR));
        Bounds {
            guarded: Arc::new(GuardedSlots::new(
                server.max_guarded as usize,
                server.max_guarded_per_connection as usize,
                Arc::clone(&door.buffers),
            )),
            passed,
            upstream_guarded: UpstreamConnections::new(
                sockets.upstream_guarded as usize,
                Bound::UpstreamConnections,
            ),
            upstream_passed: UpstreamConnections::new(sockets.upstream_passed as usize, Bound::Passed),
            door: door.clone(),
        }
    }

    /// Sets the gauges to the current values.
    fn show(&self) {
        let (requests, replies) = self.door.buffers.bytes_in_use();
        let (max_buffered, max_replies) = self.door.buffers.max();
        let connections = &self.door.connections;
        bounds::show(Bound::Connections, connections.in_use() as u64, connections.max() as u64);
        bounds::show(Bound::Guarded, self.guarded.in_use() as u64, self.guarded.max() as u64);
        bounds::show(Bound::Passed, self.passed.in_use() as u64, self.passed.max() as u64);
        let upstream = &self.upstream_guarded;
        bounds::show(Bound::UpstreamConnections, upstream.in_use() as u64, upstream.max() as u64);
        bounds::show(Bound::BufferedBytes, requests + replies, max_buffered);
        bounds::show(Bound::ReplyBytes, replies, max_replies);
    }
}

/// Raises the limit of open files and fits the sockets to it.
fn fit_sockets(server: &crate::config::ServerConfig) -> Sockets {
    let wanted = Sockets {
        connections: server.max_connections.into(),
        upstream_guarded: server.max_upstream_connections.into(),
        upstream_passed: server.max_passed.into(),
    };
    let limit = descriptors::raise_limit();
    let fitted = wanted.fit(limit);
    if fitted != wanted {
        tracing::warn!(
            limit,
            max_connections = fitted.connections,
            max_upstream_connections = fitted.upstream_guarded,
            max_passed = fitted.upstream_passed,
            "the limit of open files is too low for `[server]`, so the bounds are lower: raise it, for example with \
             `LimitNOFILE=` of systemd"
        );
    }
    fitted
}

fn tenants(how: &TenantConfig, secret: &Secret) -> TenantSource {
    let (how, secret) = (how.clone(), secret.clone());
    TenantSource::by(move |head| {
        // A request without a connection did not come through our listener.
        let connection = head.extensions.get::<Arc<Connection>>().ok_or(MissingIdentityError)?;
        how.tenant_of(head, connection.peer.ip(), &secret).map_err(|refusal| {
            tracing::info!(why = %refusal, "guarded request without a tenant");
            MissingIdentityError
        })
    })
}

fn principals(secret: &Secret) -> PrincipalSource {
    let secret = secret.clone();
    PrincipalSource::by(move |head| {
        let principal = TenantConfig::principal_of(head, &secret).map_err(|refusal| {
            tracing::info!(why = %refusal, "guarded request without a principal");
            MissingIdentityError
        })?;
        Ok(principal.as_str().to_owned())
    })
}

fn routes(config: &Config) -> Result<Routes, Failure> {
    let rule = |route: &crate::config::RouteConfig| {
        let policy = route.guard.then(|| route.policy.clone());
        Rule::new(route.methods.clone(), &route.pattern, policy)
    };
    Routes::new(config.defaults.clone(), config.routes.iter().map(rule).collect())
        .map_err(|error| Failure::usage("the routes can't be used").because(error))
}

/// Returns the next hops that the configuration names.
fn hops(config: &Config) -> impl Iterator<Item = Hop> {
    config
        .routes
        .iter()
        .map(|route| &route.policy)
        .chain([&config.defaults])
        .filter_map(|policy| policy.behind)
}

fn settings(config: &Config) -> Result<Settings, Failure> {
    let secrets = config.secrets.iter().map(Secret::new).collect::<Result<Vec<_>, _>>();
    let secrets =
        secrets.map_err(|error| Failure::usage("a fingerprint secret can't be used").because(error))?;
    Ok(Settings::default().with(|settings| {
        settings.secrets = secrets;
        settings.identity_valid_for = config.store_options.identity_valid_for;
        settings.begin_timeout = config.store_options.begin_timeout;
        settings.finish_wait = config.store_options.finish_wait;
        settings.cache_bytes = config.store_options.cache_bytes;
        settings.cache_ttl = config.store_options.cache_ttl;
        // Over HTTP/1.1 a connection has one run at a time. Twice that, because as many runs may have lost their client.
        settings.attempts_max = 2 * config.server.max_connections.max(config.server.max_guarded) as usize;
        settings.duplicate_rate = f64::from(config.upkeep.duplicate_percent) / 100.0;
    }))
}

fn start_failure(config: &Config, error: &StartError) -> Failure {
    match error {
        StartError::Identity(error) => identity::identity_failure(error),
        StartError::Store(_) => Failure::world(format!("cannot use the store at `{}`", config.store))
            .because_of(error)
            .hint("check that its disk has space and that no other program holds its lock, then start again"),
        StartError::MissingSecret(_) => {
            Failure::usage("a fingerprint secret is missing").because(error).hint(
                "keep the old secret after the new one in `secrets` until the last of its records has expired",
            )
        }
        StartError::Secrets(why) => {
            Failure::usage("the fingerprint secrets can't be used").because(why).hint("check `secrets`")
        }
        // A reason that this version does not know.
        _ => Failure::world("cannot start").because_of(error),
    }
}

pub(crate) async fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::world(format!("cannot listen on `{address}`"))
            .because(error)
            .hint(format!("another program may use the port: choose one with `{flag}`"))
    })
}

async fn until(mut flag: watch::Receiver<bool>) {
    // An error means that the gateway was dropped, which also ends the wait.
    let _ = flag.wait_for(|flag| *flag).await;
    // The operator's pages stay up during the drain; the gateway aborts their task afterwards.
    std::future::pending::<()>().await;
}

/// Response fields in which ibid reports the state of a key. An upstream that deduplicates too may send some of them.
const OWN_ANSWER_FIELDS: [&str; 4] =
    ["idempotent-replayed", "idempotency-stored", "idempotency-expires", "idempotency-outcome"];

/// Time that runs without a client and queued writes may take after the last connection has ended.
const SETTLE_FOR: Duration = Duration::from_secs(5);

/// Least time that an unguarded request has waited for a head before it is ended for a connection that finds no slot:
/// longer than a response usually takes, so that a short burst ends no request.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// Limits of the operator's listener: a handful of probes and scrapers, and no reason to wait for them.
pub(crate) const ADMIN_LIMITS: ServerLimits = ServerLimits {
    connections_max: 64,
    first_head_for: Duration::from_secs(5),
    next_head_for: Duration::from_secs(75),
    head_bytes_max: 16 * 1024,
    h2_streams_max: 16,
    h2_resets_max: 16,
    buffered_bytes_max: 64 << 20,
    reply_bytes_max: 64 << 20,
    stall_for: Duration::from_secs(30),
    h2_ping_every: Duration::from_secs(20),
    h2_pong_within: Duration::from_secs(20),
    drain_for: Duration::from_secs(1),
};
