//! The gateway: the library's guard around a forwarder, and the two listeners. It has no private door to the engine.

pub(crate) mod admin;
mod body;
pub(crate) mod connect;
mod fields;
pub(crate) mod forward;
mod pass_timeout;
pub(crate) mod reconcile;
pub(crate) mod server;
pub(crate) mod tenant;
pub(crate) mod tls_failure;
mod untrusted;
mod upgrade;
pub(crate) mod upstream_tls;

#[cfg(test)]
mod forward_tests;
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

use http::{Request, Response};
use hyper::body::Incoming;
use ibid::engine::StartError;
use ibid::http::{
    Begins, Guard, GuardLayer, Guarded, NoTenant, Principals, ReplyBody, Routes, Rule, Tenants,
};
use ibid::upkeep::{self, Schedule};
use ibid::{Ibid, Settings};
use ibid_core::fingerprint::Secret;
use ibid_core::policy::Profile;
use ibid_core::store::Store;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tower::Layer;
use tower_service::Service;

use crate::config::Config;
use crate::output::Failure;
use body::ClientBody;
use fields::RequestFields;
use forward::{ForwardBody, Forwarder};
use pass_timeout::{Progress, TellingBody};
use server::{PeerAddr, ServerLimits};
use tenant::TenantHow;
use untrusted::UntrustedHops;
use upgrade::Wish;

/// A gateway whose ports are bound and whose store answers.
pub(crate) struct Gateway {
    public: TcpListener,
    admin: TcpListener,
    app: Gate,
    ibid: Ibid,
    metrics: admin::Metrics,
    console: Option<axum::Router>,
    limits: ServerLimits,
    /// None: others look after the store.
    schedule: Option<Schedule>,
}

impl Gateway {
    /// Binds the ports, agrees with the store, and is then ready to run.
    pub(crate) async fn start(config: &Config, store: Arc<dyn Store>) -> Result<Gateway, Failure> {
        let routes = routes(config)?;
        let (public, admin) =
            (bind(config.listen, "--listen").await?, bind(config.admin_listen, "--admin-listen").await?);
        let metrics = admin::Metrics::install()?;
        let ibid = Ibid::start(store, settings(config)?).await.map_err(|error| refused(config, &error))?;
        let forwarder = Forwarder::new(config.upstream.clone(), config.upstream_http2, &config.upstream_tls)
            .map_err(|error| Failure::usage("the upstream can't be used").because(error))?;
        ibid.reconcile_with(Arc::new(reconcile::Asker(forwarder.clone())));
        let upstream = Upstream { forwarder, pass_timeout: config.pass_timeout };
        let layer = GuardLayer::with_routes(ibid.clone(), tenants(&config.tenant), routes)
            .principals(principals())
            .body_timeout(config.server.body_timeout)
            .cors(config.cors.clone())
            .hooks(config.hooks.clone())
            .map_err(|error| Failure::usage("the hooks can't be used").because(error))?
            .resumes(upstream.clone());
        let policies = config.routes.iter().map(|route| &route.policy).chain([&config.defaults]);
        let app = Gate {
            guard: layer.layer(upstream),
            tenant: Arc::new(config.tenant.clone()),
            untrusted: Arc::default(),
            fields: Arc::new(RequestFields::new(&config.tenant, policies)),
            profile: config.defaults.profile,
        };
        let limits = ServerLimits {
            connections_max: config.server.max_connections as usize,
            first_head_for: config.server.header_timeout,
            next_head_for: config.server.idle_timeout,
            drain_for: config.server.drain_for,
            ..ServerLimits::default()
        };
        if !config.upkeep.run {
            tracing::warn!(
                "upkeep is off here: lapsed, unknown, accepted and expired records are left to others"
            );
        }
        let schedule = config.upkeep.run.then_some(Schedule {
            sweep_every: config.upkeep.sweep_every,
            reap_every: config.upkeep.reap_every,
            reconcile_every: config.upkeep.reconcile_every,
            keep: config.upkeep.keep,
        });
        let console = config.admin_token.clone().map(|token| ibid_console::router(&ibid, token));
        Ok(Gateway { public, admin, app, ibid, metrics, console, limits, schedule })
    }

    /// Where clients and operators connect, once the system has chosen the ports.
    pub(crate) fn addresses(&self) -> Result<(SocketAddr, SocketAddr), Failure> {
        let of = |listener: &TcpListener| {
            listener
                .local_addr()
                .map_err(|error| Failure::world("cannot read a listener's address").because(error))
        };
        Ok((of(&self.public)?, of(&self.admin)?))
    }

    /// Serves until `shutdown`, then lets what runs come to its end, within the drain's deadline.
    pub(crate) async fn run(self, shutdown: impl Future<Output = ()>) {
        let (draining, drained) = watch::channel(false);
        let pages = admin::Pages::new(self.ibid.clone(), self.metrics, self.console, draining.subscribe());
        let admin = tokio::spawn(server::serve(self.admin, pages, ADMIN_LIMITS, until(drained.clone())));
        let (ibid, schedule) = (self.ibid.clone(), self.schedule);
        let chores = tokio::spawn(async move {
            if let Some(schedule) = schedule {
                upkeep::run(ibid, schedule).await;
            }
        });
        let asked_to_end = std::cell::Cell::new(None);
        let shutdown = async {
            shutdown.await;
            tracing::info!("draining");
            asked_to_end.set(Some(Instant::now()));
            // What is accepted from here on is delivered by another node, or by the next start.
            chores.abort();
            draining.send_replace(true);
        };
        let ended = server::serve(self.public, self.app, self.limits, shutdown).await;
        // What runs apart from its client has the drain's time too; what waits for the store gets a moment of its own.
        let drained_at = asked_to_end.get().map_or_else(Instant::now, |at| at + self.limits.drain_for);
        let until = drained_at.max(Instant::now() + SETTLE_FOR);
        let quiet = tokio::time::timeout_at(until, self.ibid.settled()).await.is_ok();
        admin.abort();
        tracing::info!(finished = ended.finished, cut = ended.cut, quiet, "stopped");
    }
}

/// The outermost service: what only the gateway knows is put on the request, what is not to be believed taken off.
#[derive(Clone)]
struct Gate {
    guard: Guard<Upstream>,
    tenant: Arc<TenantHow>,
    untrusted: Arc<UntrustedHops>,
    fields: Arc<RequestFields>,
    profile: Profile,
}

impl Service<Request<Incoming>> for Gate {
    type Response = Response<ReplyBody<ForwardBody>>;
    type Error = Infallible;
    type Future = <Guard<Upstream> as Service<Request<ClientBody>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<ClientBody>>::poll_ready(&mut self.guard, cx)
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let (head, body) = request.into_parts();
        if let Err(refusal) = fields::check(&head) {
            return Box::pin(std::future::ready(Ok(ibid::http::refused(refusal, self.profile))));
        }
        let body = ClientBody::Arriving(body, Arc::clone(&self.fields));
        let mut request = Request::from_parts(head, body);
        if let Some(PeerAddr(peer)) = request.extensions().get().copied() {
            if let Some(field) = self.tenant.strip_untrusted(request.headers_mut(), peer.ip()) {
                self.untrusted.report(field, peer.ip());
            }
            let is_trusted = self.tenant.trusts(peer.ip());
            if let Some(field) = self.fields.clean(request.headers_mut(), is_trusted) {
                self.untrusted.report(&field, peer.ip());
            }
            // Here, for a request that is delivered later no longer has its connection.
            forward::mark_peer(request.headers_mut(), peer.ip());
        }
        self.guard.call(request)
    }
}

/// The upstream as the guard's inner service. A guarded request has the guard's own time-out. The others pass untouched:
/// they may upgrade, stream both ways and take as long as they like, except that `pass_timeout` bounds the wait for the
/// head of their answer.
#[derive(Clone)]
struct Upstream {
    forwarder: Forwarder,
    pass_timeout: Option<Duration>,
}

impl Service<Request<ClientBody>> for Upstream {
    type Response = Response<ForwardBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<ClientBody>) -> Self::Future {
        if request.extensions().get::<Guarded>().is_some() {
            let call = self.forwarder.call(request);
            return Box::pin(async move {
                let Ok(mut answer) = call.await;
                // Only ibid says what it did with a guarded request.
                for name in OWN_ANSWER_FIELDS {
                    answer.headers_mut().remove(name);
                }
                Ok(answer)
            });
        }
        let wish = Wish::take(&mut request);
        let progress = Progress::begun();
        let request = ClientBody::watched(request).map(|body| TellingBody::new(body, progress.clone()));
        let (call, limit) = (self.forwarder.call(request), self.pass_timeout);
        Box::pin(async move {
            let Some(Ok(mut answer)) = progress.bound(limit, call).await else {
                return Ok(forward::timed_out());
            };
            if let Some(wish) = wish {
                wish.fulfil(&mut answer);
            }
            Ok(answer)
        })
    }
}

fn tenants(how: &TenantHow) -> Tenants {
    let how = how.clone();
    Tenants::by(move |head| {
        // A request without a peer did not come through our listener.
        let PeerAddr(peer) = head.extensions.get().copied().ok_or(NoTenant)?;
        how.tenant_of(head, peer.ip()).map_err(|refusal| {
            tracing::info!(why = %refusal, "a guarded request without a tenant");
            NoTenant
        })
    })
}

fn principals() -> Principals {
    Principals::by(|head| {
        let principal = TenantHow::principal_of(head).map_err(|refusal| {
            tracing::info!(why = %refusal, "a guarded request without a principal");
            NoTenant
        })?;
        Ok(principal.as_str().to_owned())
    })
}

fn routes(config: &Config) -> Result<Routes, Failure> {
    let rule = |route: &crate::config::Route| Rule {
        begins: Begins::Guard,
        methods: route.methods.clone(),
        pattern: route.pattern.clone(),
        policy: route.guard.then(|| route.policy.clone()),
    };
    Routes::new(config.defaults.clone(), config.routes.iter().map(rule).collect())
        .map_err(|error| Failure::usage("the routes can't be used").because(error))
}

fn settings(config: &Config) -> Result<Settings, Failure> {
    let secrets: Result<Vec<_>, _> = config.secrets.iter().map(Secret::new).collect();
    Ok(Settings {
        secrets: secrets
            .map_err(|error| Failure::usage("a fingerprint secret can't be used").because(error))?,
        identity: identity(config),
        begin_timeout: config.store_options.begin_timeout,
        finish_wait: config.store_options.finish_wait,
        cache_bytes: config.store_options.cache_bytes,
        cache_ttl: config.store_options.cache_ttl,
        // A connection has one run at a time over HTTP/1.1; as many again may have lost their client.
        attempts_max: 2 * config.server.max_connections as usize,
        duplicate_rate: f64::from(config.upkeep.duplicate_percent) / 100.0,
    })
}

/// What decides under which id a request finds its record.
fn identity(config: &Config) -> String {
    let (scope, path) = (config.defaults.scope, config.defaults.path);
    format!("tenant={} scope={scope:?} path={path:?}", config.tenant.word()).to_lowercase()
}

fn refused(config: &Config, error: &StartError) -> Failure {
    match error {
        StartError::Identity { .. } => Failure::usage("this store was used with other identity settings")
            .because(error)
            .hint("start with the settings the store was made with, or give this gateway a store of its own"),
        StartError::Store(_) => Failure::world(format!("cannot use the store at `{}`", config.store))
            .because_of(error)
            .hint("see that its disk has room and that no other program holds its lock, and start again"),
        StartError::MissingSecret(_) => {
            Failure::usage("a fingerprint secret is missing").because(error).hint(
                "keep the old secret behind the new one in `secrets` until the last of its records has gone",
            )
        }
        StartError::Secrets(_) => {
            Failure::usage("the fingerprint secrets can't be used").because(error).hint("check `secrets`")
        }
    }
}

pub(crate) async fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::world(format!("cannot listen on `{address}`"))
            .because(error)
            .hint(format!("another program may hold the port: choose one with `{flag}`"))
    })
}

async fn until(mut flag: watch::Receiver<bool>) {
    // An error means that the gateway is gone, which is also an end.
    let _ = flag.wait_for(|flag| *flag).await;
    // The operator may look on while the rest drains; the task is ended from outside.
    std::future::pending::<()>().await;
}

/// Fields by which ibid tells a client what became of its key. An upstream that deduplicates too may send some of them.
const OWN_ANSWER_FIELDS: [&str; 4] =
    ["idempotent-replayed", "idempotency-stored", "idempotency-expires", "idempotency-outcome"];

/// How long runs without a client and queued writes may take after the last connection has ended.
const SETTLE_FOR: Duration = Duration::from_secs(5);

/// A handful of probes and scrapers, and no reason to wait for them.
pub(crate) const ADMIN_LIMITS: ServerLimits = ServerLimits {
    connections_max: 64,
    first_head_for: Duration::from_secs(5),
    next_head_for: Duration::from_secs(75),
    head_bytes_max: 16 * 1024,
    h2_streams_max: 16,
    h2_ping_every: Duration::from_secs(20),
    h2_pong_within: Duration::from_secs(20),
    drain_for: Duration::from_secs(1),
};
