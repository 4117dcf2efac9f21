//! [`IdempotencyLayer`]: which requests are guarded, and by which rules.
//!
//! The service around yours passes on what no route guards, serves ibid's own pages under `/.ibid/`, and hands every guarded
//! request to `guarded`.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::ORIGIN;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use ibid_core::policy::{BindRule, Policy, Profile};
use ibid_core::refusal::Refusal;
use ibid_core::scope::Operation;
use ibid_core::store::Tiers;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument;

use super::admission::{Admission, AdmissionPermit, OverCapacityError};
use super::body::ReplyBody;
use super::cors::Cors;
use super::hooks::{self, Hook, HookError, Hooks};
use super::previous::PreviousRoutes;
use super::render::{self, Reply};
use super::resume::Resumer;
use super::routes::{Routes, Ruling, upper_case};
use super::without_key::KeysElsewhere;
use super::{
    MissingIdentityError, PrincipalSource, TenantSource, counters, guarded_request, method_override,
    original_uri, pages, proof,
};
use crate::ibid::Ibid;
use crate::identity::IdentitySetting;
use crate::trace;

/// Wraps a service in an [`IdempotencyService`], which executes each guarded request once.
///
/// Put it inside authentication, because it needs the tenant, and inside compression, because it stores the bytes that pass
/// through it. The [module](super) has an example.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is put into it"]
pub struct IdempotencyLayer {
    shared: Arc<LayerState>,
}

/// A service whose guarded requests are executed once; made by [`IdempotencyLayer`].
#[derive(Clone)]
pub struct IdempotencyService<S> {
    inner: S,
    shared: Arc<LayerState>,
}

/// The settings of a layer, shared by its services and their requests.
#[derive(Clone)]
pub(super) struct LayerState {
    pub(super) ibid: Ibid,
    pub(super) tenants: TenantSource,
    pub(super) principals: PrincipalSource,
    pub(super) routes: Routes,
    /// The routes of the store's previous identities.
    pub(super) previous: PreviousRoutes,
    pub(super) hooks: Hooks,
    pub(super) body_timeout: Duration,
    pub(super) keys_elsewhere: Arc<KeysElsewhere>,
    pub(super) cors: Cors,
    pub(super) admission: Option<Arc<dyn Admission>>,
    /// Set if handlers can take the attempt of their request ([`HeldAttempt`](super::HeldAttempt)).
    pub(super) lends_attempts: bool,
}

impl LayerState {
    /// Admits a request, before its body is read.
    pub(super) fn admit(&self, head: &Parts) -> Result<Option<AdmissionPermit>, OverCapacityError> {
        self.admission.as_ref().map(|admission| admission.admit(head)).transpose()
    }

    /// Returns the response, or a refusal if it is a replay that memory has no room for. The next retry gets it, so nothing is
    /// lost.
    pub(super) fn within_room<A>(&self, reply: Reply<A>, profile: Profile) -> Reply<A> {
        let has_room = match &self.admission {
            Some(admission) if render::is_replay(&reply) => {
                admission.has_room_for_replay(reply.body().in_memory())
            }
            _ => true,
        };
        if has_room { reply } else { render::refusal(Refusal::Overloaded, profile, None) }
    }

    /// Returns the principal within the tenant that sent this request, if the policy binds keys to one.
    pub(super) fn principal(
        &self,
        policy: &Policy,
        head: &Parts,
    ) -> Result<Option<String>, MissingIdentityError> {
        match policy.bind {
            BindRule::Tenant => Ok(None),
            BindRule::Principal => self.principals.find(head).map(Some),
        }
    }
}

impl std::fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdempotencyLayer").field("routes", &self.shared.routes).finish_non_exhaustive()
    }
}

impl<S: std::fmt::Debug> std::fmt::Debug for IdempotencyService<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdempotencyService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl IdempotencyLayer {
    /// Guards every method under the default policy except GET, HEAD, OPTIONS, TRACE, QUERY, PUT and DELETE.
    pub fn new(ibid: Ibid, tenants: TenantSource) -> IdempotencyLayer {
        IdempotencyLayer::with_routes(ibid, tenants, Routes::default())
    }

    /// Guards the requests that `routes` names, each under its policy.
    ///
    /// # Panics
    ///
    /// Panics if `ibid` was started with an identity that is not the routes' own (give [`Routes::identity`] to `Ibid::start`),
    /// or if a route needs what the store lacks ([`Routes::check_store`]).
    pub fn with_routes(ibid: Ibid, tenants: TenantSource, routes: Routes) -> IdempotencyLayer {
        let previous = PreviousRoutes::new(ibid.previous_identities());
        assert_identity(&ibid, &routes);
        if let Err(error) = routes.check_store(Tiers::of(&**ibid.store())) {
            panic!("{error}");
        }
        counters::init_reserve_counters(routes.guarded_patterns());
        routes.with_optional_keys().for_each(|route| counters::without_key(route, 0));
        IdempotencyLayer {
            shared: Arc::new(LayerState {
                ibid,
                tenants,
                principals: PrincipalSource::none(),
                routes,
                previous,
                hooks: Hooks::default(),
                body_timeout: BODY_TIMEOUT,
                keys_elsewhere: Arc::default(),
                cors: Cors::default(),
                admission: None,
                lends_attempts: true,
            }),
        }
    }

    /// Sets how the principal of a request is found, for policies with `bind = "principal"`.
    pub fn principals(self, principals: PrincipalSource) -> IdempotencyLayer {
        self.with(|shared| shared.principals = principals)
    }

    /// Accepts webhooks of these sources at `/.ibid/hooks/{source}`. Providers send them without a tenant, so put the layer where
    /// such requests reach it.
    ///
    /// # Errors
    ///
    /// Fails if a hook names a route that does not exist, if the store keeps no evidence, or if a hook is about effects while
    /// the store has no outbox.
    pub fn hooks(self, hooks: Vec<Hook>) -> Result<IdempotencyLayer, HookError> {
        let hooks = Hooks::new(hooks, &self.shared.routes)?;
        if let Some(name) = hooks.any().filter(|_| self.shared.ibid.store().evidence().is_none()) {
            let problem = "needs a store that keeps webhook evidence";
            return Err(HookError { hook: name.to_owned(), problem });
        }
        if let Some(name) = hooks.of_effects().filter(|_| self.shared.ibid.store().sql().is_none()) {
            let problem = "speaks of effects, and the store has no outbox";
            return Err(HookError { hook: name.to_owned(), problem });
        }
        Ok(self.with(|shared| shared.hooks = hooks))
    }

    /// Sets which origins' scripts may read refusals, 202 and the pages under `/.ibid/`; none by default. Not needed if a CORS
    /// layer around this one sets its fields on every response.
    pub fn cors(self, cors: Cors) -> IdempotencyLayer {
        self.with(|shared| shared.cors = cors)
    }

    /// Sets how long the whole body of a guarded request may take to arrive; 30 s by default.
    pub fn body_timeout(self, body_timeout: Duration) -> IdempotencyLayer {
        self.with(|shared| shared.body_timeout = body_timeout)
    }

    /// Asks `admission` before the body of a guarded request is read. Without it, every request is admitted.
    pub fn admission(self, admission: Arc<dyn Admission>) -> IdempotencyLayer {
        self.with(|shared| shared.admission = Some(admission))
    }

    /// Keeps the attempt away from handlers: for services that forward requests and cannot use
    /// [`HeldAttempt`](super::HeldAttempt), so that no request pays for it.
    #[doc(hidden)]
    pub fn without_held_attempts(self) -> IdempotencyLayer {
        self.with(|shared| shared.lends_attempts = false)
    }

    /// Lets the [chores](crate::upkeep::run) of this process run requests without their clients on `service`, which is the
    /// service that this layer wraps: lapsed requests of routes with `on_lapse = resume`, and accepted requests of routes with
    /// `answer = async`. Without it the former wait for their client's next request, and the latter for another process.
    ///
    /// Call it last: it uses the settings that the layer has at that moment.
    pub fn resumes<S, Q, A>(self, service: S) -> IdempotencyLayer
    where
        S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Clone + Send + Sync + 'static,
        S::Future: Send,
        Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
        A: Body<Data = Bytes> + Unpin + Send + 'static,
    {
        self.shared.ibid.resume_with(Arc::new(Resumer::new(self.shared.clone(), service)));
        self
    }

    fn with(self, set: impl FnOnce(&mut LayerState)) -> IdempotencyLayer {
        let mut shared = LayerState::clone(&self.shared);
        set(&mut shared);
        IdempotencyLayer { shared: Arc::new(shared) }
    }
}

/// Checks that the routes make record ids as the store's identity says. Otherwise a retry would not find its record.
fn assert_identity(ibid: &Ibid, routes: &Routes) {
    let Some(IdentitySetting { current, .. }) = ibid.identity() else { return };
    let ours = routes.identity(current.tenant());
    let ours = current.tenant_secret().map_or(ours.clone(), |id| ours.with_tenant_secret(id));
    let differences: Vec<_> = current.differences(&ours).iter().map(ToString::to_string).collect();
    assert!(
        differences.is_empty(),
        "the routes are not those that `Ibid::start` was given the identity of: {}",
        differences.join("; ")
    );
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> IdempotencyService<S> {
        IdempotencyService { inner, shared: self.shared.clone() }
    }
}

impl<S, Q, A> Service<Request<Q>> for IdempotencyService<S>
where
    S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    A: Body<Data = Bytes> + Unpin + Send + 'static,
{
    type Response = Reply<A>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Reply<A>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        // The service that `poll_ready` made ready has to be the one that is called, so the clone replaces it.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        if let Cow::Owned(method) = upper_case(request.method()) {
            *request.method_mut() = method;
        }
        let path = original_uri(request.extensions(), request.uri()).path();
        if pages::is_own(path) {
            return self.serve_own(request);
        }
        let (method, ruling) =
            method_override::judge(&self.shared.routes, request.method(), request.headers(), path);
        match ruling {
            Ruling::Passes => {
                let call = inner.call(request);
                Box::pin(async move { Ok(pass_on(call.await?)) })
            }
            Ruling::Refused { route, refusal } => {
                let mut reply = render::refusal(refusal, route.policy.profile, None);
                self.shared.cors.finish(request.headers().get(ORIGIN), &mut reply);
                Box::pin(std::future::ready(Ok(reply)))
            }
            Ruling::Guarded { route, path } => {
                let operation = Operation { method: method.as_str().into(), path: path.into() };
                let (shared, route) = (self.shared.clone(), route.clone());
                let span = trace::begin(&mut request, &route.pattern);
                let origin = request.headers().get(ORIGIN).cloned();
                let reply = async move {
                    let mut reply = guarded_request::serve(&shared, inner, route, operation, request).await;
                    shared.cors.finish(origin.as_ref(), &mut reply);
                    Ok(reply)
                };
                if span.is_disabled() { Box::pin(reply) } else { Box::pin(reply.instrument(span)) }
            }
        }
    }
}

impl<S> IdempotencyService<S> {
    /// Serves a page or a hook under `/.ibid/`.
    fn serve_own<Q, A>(
        &self,
        request: Request<Q>,
    ) -> Pin<Box<dyn Future<Output = Result<Reply<A>, Infallible>> + Send>>
    where
        Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
        A: Send + 'static,
    {
        let shared = self.shared.clone();
        let path = original_uri(request.extensions(), request.uri()).path();
        if hooks::source(path).is_some() {
            return Box::pin(async move { Ok(hooks::serve(&shared, request).await) });
        }
        let origin = request.headers().get(ORIGIN).cloned();
        Box::pin(async move {
            let mut reply = pages::serve(&shared, request).await;
            shared.cors.finish(origin.as_ref(), &mut reply);
            Ok(reply)
        })
    }
}

/// Passes on the handler's response to an unguarded request.
pub(super) fn pass_on<A>(mut response: Response<A>) -> Reply<A> {
    proof::hide_outcome(response.headers_mut());
    response.map(ReplyBody::pass_through)
}

/// Longest time in which a whole request body has to arrive. A slower client holds a connection and a buffer for nothing;
/// large bodies are bounded anyway.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
