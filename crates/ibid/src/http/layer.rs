//! The guard around a service: decides whether a request is guarded, and runs a guarded one apart from its client, so
//! that its completion does not depend on anybody still listening.
//!
//! Longer than most files because a guarded request's whole way, from the route to the reply, is read in one piece.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{ACCEPT_ENCODING, HeaderValue, ORIGIN, RETRY_AFTER};
use http::request::Parts;
use http::{Request, Response, response};
use http_body::Body;
use ibid_core::machine::Ask;
use ibid_core::policy::{BindRule, InFlight, Policy, Profile};
use ibid_core::proof::Proof;
use ibid_core::record::ErrorCode;
use ibid_core::refusal::Refusal;
use ibid_core::response::Response as KeptResponse;
use ibid_core::scope::Operation;
use tokio::sync::oneshot;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument;

use super::admission::{Admission, Admitted, Crowded};
use super::body::ReplyBody;
use super::capture::{self, Captured};
use super::cors::{self, Cors};
use super::held::{Slot, Told, Unbegun};
use super::hooks::{self, Hook, HookError, Hooks};
use super::intake::{self, Intake, Taken};
use super::previous::PreviousRoutes;
use super::resume::Resumer;
use super::routes::{Begins, Route, Routes, Ruling, upper_case};
use super::without_key::{self, KeysElsewhere};
use super::{
    Fate, Guarded, NoTenant, Principals, Tenants, method_override, outcome, repeatability, reply, sent,
    status, trace,
};
use crate::attempt::{Attempt, Finished, Late};
use crate::engine::Unavailable;
use crate::ibid::{Begun, Ibid};
use crate::identity::IdentitySetting;
use crate::telemetry::{self, Met};

/// Puts a [`Guard`] around a service.
///
/// Put it inside of authentication (it needs the tenant) and of compression (it keeps what passes through it).
#[derive(Clone)]
pub struct GuardLayer {
    shared: Arc<Shared>,
}

/// A service whose guarded requests are carried out once.
#[derive(Clone)]
pub struct Guard<S> {
    inner: S,
    shared: Arc<Shared>,
}

#[derive(Clone)]
pub(super) struct Shared {
    pub(super) ibid: Ibid,
    pub(super) tenants: Tenants,
    pub(super) principals: Principals,
    pub(super) routes: Routes,
    /// Those of the store's previous identities.
    pub(super) previous: PreviousRoutes,
    pub(super) hooks: Hooks,
    pub(super) body_timeout: Duration,
    pub(super) keys_elsewhere: Arc<KeysElsewhere>,
    pub(super) cors: Cors,
    pub(super) admission: Option<Arc<dyn Admission>>,
}

impl Shared {
    /// Takes a request in, before its body is read.
    pub(super) fn admit(&self, head: &Parts) -> Result<Option<Admitted>, Crowded> {
        self.admission.as_ref().map(|admission| admission.admit(head)).transpose()
    }

    /// The reply, unless it is a replay that there is no room for. Its retry gets it, so nothing is lost.
    fn within_room<A>(&self, reply: Reply<A>, profile: Profile) -> Reply<A> {
        let has_room = match &self.admission {
            Some(admission) if reply::is_replay(&reply) => {
                admission.has_room_for_replay(reply.body().in_memory())
            }
            _ => true,
        };
        if has_room { reply } else { reply::refusal(Refusal::Overloaded, profile, None) }
    }

    /// Who within the tenant sent this, if the policy asks for it.
    pub(super) fn principal(&self, policy: &Policy, head: &Parts) -> Result<Option<String>, NoTenant> {
        match policy.bind {
            BindRule::Tenant => Ok(None),
            BindRule::Principal => self.principals.find(head).map(Some),
        }
    }
}

impl GuardLayer {
    /// Guards every method under the default policy but GET, HEAD, OPTIONS, TRACE, QUERY, PUT and DELETE.
    pub fn new(ibid: Ibid, tenants: Tenants) -> GuardLayer {
        GuardLayer::with_routes(ibid, tenants, Routes::default())
    }

    /// Guards what the routes say.
    ///
    /// # Panics
    ///
    /// If `ibid` was started with an identity that is not the routes' own: give [`Routes::identity`] to `Ibid::start`.
    pub fn with_routes(ibid: Ibid, tenants: Tenants, routes: Routes) -> GuardLayer {
        let principals = Principals::none();
        let previous = PreviousRoutes::new(ibid.previous_identities());
        assert_identity(&ibid, &routes);
        telemetry::none_yet(routes.named());
        routes.with_optional_keys().for_each(|route| telemetry::without_key(route, 0));
        GuardLayer {
            shared: Arc::new(Shared {
                ibid,
                tenants,
                principals,
                routes,
                previous,
                hooks: Hooks::default(),
                body_timeout: BODY_TIMEOUT,
                keys_elsewhere: Arc::default(),
                cors: Cors::default(),
                admission: None,
            }),
        }
    }

    /// Who within a tenant sent a request, for policies with `bind = "principal"`.
    pub fn principals(self, principals: Principals) -> GuardLayer {
        GuardLayer { shared: Arc::new(Shared { principals, ..Shared::clone(&self.shared) }) }
    }

    /// Takes webhooks of these sources at `/.ibid/hooks/{source}`. They come from outside, so put the guard where requests
    /// without a tenant reach it.
    pub fn hooks(self, hooks: Vec<Hook>) -> Result<GuardLayer, HookError> {
        let hooks = Hooks::new(hooks, &self.shared.routes)?;
        if let Some(name) = hooks.of_effects().filter(|_| self.shared.ibid.store().sql().is_none()) {
            let problem = "speaks of effects, and the store has no outbox";
            return Err(HookError { hook: name.to_owned(), problem });
        }
        Ok(GuardLayer { shared: Arc::new(Shared { hooks, ..Shared::clone(&self.shared) }) })
    }

    /// Which origins' scripts may read refusals, 202 and the pages under `/.ibid/`; none unless said otherwise. Not needed
    /// where a CORS layer around this one puts its fields on every answer.
    pub fn cors(self, cors: Cors) -> GuardLayer {
        GuardLayer { shared: Arc::new(Shared { cors, ..Shared::clone(&self.shared) }) }
    }

    /// How long a guarded request's body may take to arrive, in all; 30 s unless said otherwise.
    pub fn body_timeout(self, body_timeout: Duration) -> GuardLayer {
        GuardLayer { shared: Arc::new(Shared { body_timeout, ..Shared::clone(&self.shared) }) }
    }

    /// Asks before a guarded request's body is read whether there is room for it. Without this there always is.
    pub fn admission(self, admission: Arc<dyn Admission>) -> GuardLayer {
        let admission = Some(admission);
        GuardLayer { shared: Arc::new(Shared { admission, ..Shared::clone(&self.shared) }) }
    }
}

impl GuardLayer {
    /// Lets the [chores](crate::upkeep::run) of this process run requests without their clients on `service`, which is
    /// what this layer is put around: lapsed ones of routes with `on_lapse = resume`, and accepted ones of routes with
    /// `answer = async`. Without it the former wait for their client's next request, and the latter for another process.
    pub fn resumes<S, Q, A>(self, service: S) -> GuardLayer
    where
        S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Clone + Send + Sync + 'static,
        S::Future: Send,
        Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
        A: Body<Data = Bytes> + Unpin + Send + 'static,
    {
        let resumer = Resumer { shared: self.shared.clone(), service, request: std::marker::PhantomData };
        self.shared.ibid.resume_with(Arc::new(resumer));
        self
    }
}

/// Under other rules than the store agreed on, a retry would not find its record.
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

/// Runs a request whose record was taken over, with nobody to answer to.
pub(super) async fn resume<S, Q, A>(shared: &Shared, mut service: S, attempt: Attempt, taken: Taken)
where
    S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    A: Body<Data = Bytes> + Unpin + Send + 'static,
{
    let ask = taken.ask.clone();
    let operation = &ask.identity.operation;
    let method = http::Method::from_bytes(operation.method.as_bytes()).ok();
    let route = method.and_then(|method| shared.routes.find(&method, &operation.path));
    let pattern = route.map(|route| route.pattern.clone());
    let route = Route {
        pattern: pattern.unwrap_or_else(|| Arc::from("*")),
        policy: ask.policy.clone(),
        begins: Begins::Guard,
    };
    let met = if attempt.number() == 1 { Met::Created } else { Met::FailedRetry };
    telemetry::reserved(met, &route.pattern, route.policy.profile);
    let Ok(()) = std::future::poll_fn(|context| service.poll_ready(context)).await;
    let (to_client, _) = oneshot::channel();
    let run = Run { route: &route, policy: &route.policy, ask: &ask, to_client };
    run.carry_out(attempt, service, taken).await;
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard { inner, shared: self.shared.clone() }
    }
}

/// The answer to the client and its body.
type Reply<B> = Response<ReplyBody<B>>;

impl<S, Q, A> Service<Request<Q>> for Guard<S>
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
        // The clone takes the place of the service that was made ready, which is the one to be called.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let shared = self.shared.clone();
        if let Cow::Owned(method) = upper_case(request.method()) {
            *request.method_mut() = method;
        }
        let path = sent(request.extensions(), request.uri()).path();
        if hooks::source(path).is_some() {
            return Box::pin(async move { Ok(hooks::serve(&shared, request).await) });
        }
        if status::is_own(path) {
            let origin = request.headers().get(ORIGIN).cloned();
            return Box::pin(async move {
                let mut reply = status::serve(&shared, request).await;
                shared.cors.finish(origin.as_ref(), &mut reply);
                Ok(reply)
            });
        }
        let (method, ruling) =
            method_override::judge(&self.shared.routes, request.method(), request.headers(), path);
        match ruling {
            Ruling::Passes => {
                let call = inner.call(request);
                Box::pin(async move { Ok(passed(call.await?)) })
            }
            Ruling::Refused { route, refusal } => {
                let mut reply = reply::refusal(refusal, route.policy.profile, None);
                shared.cors.finish(request.headers().get(ORIGIN), &mut reply);
                Box::pin(std::future::ready(Ok(reply)))
            }
            Ruling::Guarded { route, path } => {
                let operation = Operation { method: method.as_str().into(), path: path.into() };
                let route = route.clone();
                let span = trace::begin(&mut request, &route.pattern);
                let origin = request.headers().get(ORIGIN).cloned();
                let reply = async move {
                    let mut reply = guarded(shared.clone(), inner, route, operation, request).await;
                    shared.cors.finish(origin.as_ref(), &mut reply);
                    Ok(reply)
                };
                Box::pin(reply.instrument(span))
            }
        }
    }
}

/// A guarded request, from intake to reply.
async fn guarded<S, Q, A>(
    shared: Arc<Shared>,
    mut inner: S,
    route: Route,
    operation: Operation,
    request: Request<Q>,
) -> Reply<A>
where
    S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    A: Body<Data = Bytes> + Unpin + Send + 'static,
{
    let profile = route.policy.profile;
    let intake = intake::take(&shared, &route, operation, request)
        .instrument(tracing::debug_span!(telemetry::SPAN_INTAKE));
    let mut taken = match intake.await {
        Intake::Taken(taken) => taken,
        Intake::Unguarded(mut request) => {
            telemetry::without_key(&route.pattern, 1);
            without_key::notice(&shared.keys_elsewhere, &route, &mut request);
            let Ok(answer) = inner.call(request).await;
            return passed(answer);
        }
        Intake::Refused(refusal) => {
            let _replies = tracing::debug_span!(telemetry::SPAN_REPLY).entered();
            return reply::refusal(refusal, profile, None);
        }
    };
    let (ask, wait, preferred) = (taken.ask.clone(), taken.wait, taken.preferred);
    // Held until the client has its answer; the run holds the body's part for as long as it goes on.
    let admitted = taken.admitted.take();
    if taken.too_old {
        match repeatability::is_new(&shared.ibid, &ask).await {
            Ok(false) => {}
            Ok(true) => return reply::refusal(Refusal::RequestTooOld, profile, None),
            Err(_) => return reply::refusal(reply::unavailable(), profile, None),
        }
    }
    if route.begins == Begins::Handler {
        return begun_by_handler(shared, inner, route, *taken).await;
    }
    if let Some(begun) = shared.ibid.replay_cached(&ask) {
        return shared.within_room(answer(&begun, &route, &ask), profile);
    }
    let (to_client, from_run) = oneshot::channel();
    let run = begin_and_run(shared.ibid.clone(), inner, route.clone(), *taken, to_client);
    let body = admitted.as_ref().map(|admitted| Arc::clone(&admitted.body));
    let run = async move {
        run.await;
        drop(body);
    };
    tokio::spawn(run.in_current_span());
    let mut reply = match from_run.await {
        Ok(Outcome::Reply(reply)) => *reply,
        Ok(Outcome::InFlight(Begun::Accepted { new: true })) if !wait.is_zero() => {
            wait_for_own(&shared.ibid, &route, ask, wait).await
        }
        Ok(Outcome::InFlight(_)) if !wait.is_zero() => wait_for(&shared.ibid, &route, ask, wait).await,
        Ok(Outcome::InFlight(begun)) => answer(&begun, &route, &ask),
        // The task can only have been dropped with the whole runtime.
        Err(_) => reply::refusal(reply::unavailable(), profile, None),
    };
    if preferred {
        reply::as_preferred(&mut reply);
    }
    shared.within_room(reply, profile)
}

/// A request whose key the handler reserves in its own transaction, apart from its client like every other.
async fn begun_by_handler<S, Q, A>(shared: Arc<Shared>, mut inner: S, route: Route, taken: Taken) -> Reply<A>
where
    S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    A: Body<Data = Bytes> + Unpin + Send + 'static,
{
    let (ask, wait) = (taken.ask.clone(), taken.wait);
    let unbegun =
        Unbegun { ibid: shared.ibid.clone(), ask: ask.clone(), wait, told: Arc::new(Mutex::new(None)) };
    let mut request = as_sent(&taken);
    request.extensions_mut().insert(unbegun.clone());
    let (living, up_to) = (shared.ibid.engine().drain.track_begin(), route.policy.upstream_timeout);
    let span = tracing::debug_span!(telemetry::SPAN_RUN, record = %ask.id.short());
    let run = async move {
        // Past its time it is dropped, and its transaction with it.
        let ran = tokio::time::timeout(up_to, inner.call(request)).await;
        drop(living);
        ran.map(|answered| answered.unwrap_or_else(|never| match never {}))
    };
    let ran = match tokio::spawn(run.instrument(span)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) if unbegun.told().is_none() => {
            // A commit that was under way may have come about: the record tells.
            return wait_for(&shared.ibid, &route, ask, Duration::ZERO).await;
        }
        Ok(Err(_)) | Err(_) => Err(()),
    };
    let Some(told) = unbegun.told() else {
        // It began nothing: its answer is its own. A panic undid its transaction.
        return match ran {
            Ok(answer) => answer.map(ReplyBody::passed),
            Err(()) => reply::refusal(Refusal::HandlerFailed, route.policy.profile, None),
        };
    };
    match told {
        Told::Begun(begun) => answer(&begun, &route, &ask),
        Told::Finished(finished) => {
            telemetry::reserved(Met::Created, &route.pattern, route.policy.profile);
            let freed = matches!(finished, Finished::Freed);
            match ended(finished, &route, &ask) {
                Ended::Reply(reply) => *reply,
                Ended::Waits => wait_for(&shared.ibid, &route, ask, wait).await,
                Ended::AsHandlerSays => match ran {
                    Ok(mut answer) => {
                        repeatability::mark(answer.headers_mut(), route.policy.profile, !freed);
                        answer.map(ReplyBody::passed)
                    }
                    Err(()) => reply::refusal(Refusal::HandlerFailed, route.policy.profile, None),
                },
            }
        }
    }
}

/// What an end inside the handler's transaction means for the client.
enum Ended<A> {
    Reply(Box<Reply<A>>),
    /// The answer is owed by an Effect.
    Waits,
    /// Nothing is stored: the handler's own answer goes out.
    AsHandlerSays,
}

fn ended<A>(finished: Finished, route: &Route, ask: &Ask) -> Ended<A> {
    Ended::Reply(Box::new(match finished {
        Finished::Stored(kept) => reply::stored(&kept.record, &kept.response),
        Finished::Owed => return Ended::Waits,
        Finished::Freed | Finished::StoredUnkept(_) => return Ended::AsHandlerSays,
        // Whether the commit came about is not known here; the record tells the retry.
        Finished::NotStored => reply::refusal(reply::unavailable(), route.policy.profile, None),
        Finished::Unsettled { settled_in } => answer(&Begun::Unknown { settled_in }, route, ask),
        Finished::Superseded(begun) => answer(&begun, route, ask),
    }))
}

/// Waits for an answer that is to come, as a duplicate does.
async fn wait_for<A>(ibid: &Ibid, route: &Route, ask: Ask, wait: Duration) -> Reply<A> {
    match ibid.wait(ask.clone(), wait).await {
        Ok(begun) => answer(&begun, route, &ask),
        Err(refused) => unavailable(&refused, route),
    }
}

/// Waits for the answer to one's own request, which is no duplicate and no replay.
async fn wait_for_own<A>(ibid: &Ibid, route: &Route, ask: Ask, wait: Duration) -> Reply<A> {
    match ibid.wait(ask.clone(), wait).await {
        Ok(Begun::Replay(kept)) => reply::stored(&kept.record, &kept.response),
        Ok(Begun::Accepted { .. } | Begun::InFlight { .. }) | Err(_) => {
            reply::accepted(&ask.identity, route.policy.profile)
        }
        Ok(begun) => answer(&begun, route, &ask),
    }
}

/// What the detached task tells the client's.
enum Outcome<A> {
    Reply(Box<Reply<A>>),
    /// A duplicate, or accepted: whether to wait is the client's business, and ends with the client.
    InFlight(Begun),
}

/// Reserves the key and runs the handler, whether or not the client still listens.
async fn begin_and_run<S, Q, A>(
    ibid: Ibid,
    inner: S,
    route: Route,
    taken: Taken,
    to_client: oneshot::Sender<Outcome<A>>,
) where
    S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    A: Body<Data = Bytes> + Unpin + Send + 'static,
{
    let ask = ibid.engine().with_fresh_nonce(taken.ask.clone());
    // A shutdown waits for it: what is being reserved may be about to run.
    let _begins = ibid.engine().drain.track_begin();
    let begin = ibid.begin_uncached(ask.clone()).instrument(tracing::debug_span!(telemetry::SPAN_BEGIN));
    let reply = match begin.await {
        Err(refused) => unavailable(&refused, &route),
        Ok(begun @ (Begun::InFlight { .. } | Begun::Accepted { .. })) => {
            let _ = to_client.send(Outcome::InFlight(begun));
            return;
        }
        Ok(Begun::Run(attempt)) => {
            let met = if attempt.number() == 1 { Met::Created } else { Met::FailedRetry };
            telemetry::reserved(met, &route.pattern, route.policy.profile);
            if to_client.is_closed() {
                // The client left before the first outside byte: nothing needs to happen.
                attempt.release(ErrorCode::ClientGone).await;
                return;
            }
            let run = Run { route: &route, policy: &route.policy, ask: &ask, to_client };
            return run.carry_out(*attempt, inner, taken).await;
        }
        Ok(begun) => answer(&begun, &route, &ask),
    };
    let _ = to_client.send(Outcome::Reply(Box::new(reply)));
}

/// One run of the handler and the end of its Attempt.
struct Run<'a, A> {
    route: &'a Route,
    policy: &'a Policy,
    ask: &'a Ask,
    to_client: oneshot::Sender<Outcome<A>>,
}

/// What the handler gave.
#[expect(
    clippy::large_enum_variant,
    reason = "one per run and short-lived: a box would cost more than the move"
)]
enum Ran<A> {
    /// Its answer, and what that proves.
    Captured(Captured<A>, Option<Proof>),
    /// It says itself that nothing was executed.
    NotExecuted,
    /// It says itself that the work may have been done.
    Uncertain,
    Panicked,
}

impl<A: Body<Data = Bytes> + Unpin + Send + 'static> Run<'_, A> {
    async fn carry_out<S, Q>(self, mut attempt: Attempt, mut inner: S, taken: Taken)
    where
        S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Send + 'static,
        S::Future: Send,
        Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    {
        if attempt.ready().await.is_err() {
            let finished = attempt.release(ErrorCode::NotSent).await;
            return self.send_refusal(finished, reply::unavailable());
        }
        let (renewal, rules, pattern) =
            (attempt.keep_alive(), attempt.begun().policy.clone(), self.route.pattern.clone());
        let span = tracing::debug_span!(telemetry::SPAN_RUN, record = %attempt.short_id(), attempt = attempt.number());
        let (request, slot) = for_handler(attempt, self.ask, taken);
        let (limit, stream) = (self.policy.max_response_body, self.policy.stream);
        let handler = async move {
            let Ok(answer) = inner.call(request).await;
            match answer.extensions().get::<Fate>() {
                Some(Fate::NotExecuted) => Ran::NotExecuted,
                Some(Fate::Uncertain) => Ran::Uncertain,
                Some(Fate::Executed) | None => {
                    let mut captured = capture::read(answer, limit, stream).await;
                    let proof = outcome::take_proof(&mut captured, &rules, &pattern);
                    Ran::Captured(captured, proof)
                }
            }
        };
        let mut handler = Box::pin(AssertUnwindSafe(handler).catch_unwind().instrument(span));
        let started = Instant::now();
        let ran = tokio::select! {
            biased;
            ran = tokio::time::timeout(self.policy.upstream_timeout, &mut handler) => ran,
            // Renewal ends at `max_run` or when the record is lost; the handler's own end is waited for all the same.
            _ = async { renewal.await; std::future::pending::<()>().await } => unreachable!("it never ends"),
        };
        telemetry::ran(&self.route.pattern, how_ended(&ran), started.elapsed().as_secs_f64());
        match (ran, slot.take()) {
            (Ok(ran), Some(attempt)) => {
                let end = self.end(attempt, ran.unwrap_or(Ran::Panicked));
                end.instrument(tracing::debug_span!(telemetry::SPAN_FINISH)).await;
            }
            (Ok(_), None) => {
                // Whoever holds it may still end it; if it is dropped, it ends by itself.
                tracing::error!("a handler answered while something else held its attempt");
                let failed = reply::refusal(Refusal::HandlerFailed, self.policy.profile, None);
                self.send(failed);
            }
            (Err(_), None) => {
                // It is in the handler's hands, with or without a transaction open: both end here.
                drop(handler);
                self.timed_out(slot.take()).await;
            }
            // It ended in the handler's transaction; what the handler does after that changes nothing.
            (Err(_), Some(attempt)) if attempt.outcome().is_some() => self.timed_out(Some(attempt)).await,
            (Err(_), Some(attempt)) => {
                let (finished, late) = attempt.unknown(ErrorCode::TimedOut).await;
                let (policy, key) = (self.policy, self.ask.identity.key.clone());
                let refusal = uncertain(true, &finished);
                self.send_refusal(finished, refusal);
                // The answer may still come, and then it settles the record by itself.
                if let Ok(Ok(ran)) = tokio::time::timeout(policy.linger, handler).await {
                    settle_late(late, ran, policy, key.as_str()).await;
                }
            }
        }
    }

    /// The handler was stopped with its Attempt in hand. What its transaction did is undone or committed by now.
    async fn timed_out(self, attempt: Option<Attempt>) {
        let Some(mut attempt) = attempt else {
            let failed = reply::refusal(Refusal::HandlerFailed, self.policy.profile, None);
            return self.send(failed);
        };
        if let Some(finished) = attempt.take_outcome() {
            return self.send_ended(finished, None);
        }
        if attempt.has_ended() {
            // Its end is being written; the client waits for that like a duplicate.
            return drop(self.to_client.send(Outcome::InFlight(SOON)));
        }
        let finished = if attempt.is_exposed() {
            attempt.unknown(ErrorCode::TimedOut).await.0
        } else {
            attempt.release(ErrorCode::TimedOut).await
        };
        let refusal = match finished {
            Finished::Freed => Refusal::UpstreamUnavailable,
            _ => uncertain(true, &finished),
        };
        self.send_refusal(finished, refusal);
    }

    /// The Attempt ended in the handler's own transaction: what is stored is the answer.
    fn send_ended(self, finished: Finished, said: Option<Reply<A>>) {
        match ended(finished, self.route, self.ask) {
            Ended::Reply(reply) => self.send(*reply),
            Ended::Waits => drop(self.to_client.send(Outcome::InFlight(SOON))),
            Ended::AsHandlerSays => {
                let reply = said.unwrap_or_else(|| {
                    reply::refusal(Refusal::UpstreamUnavailable, self.policy.profile, None)
                });
                self.send(reply);
            }
        }
    }

    /// The handler has ended in time.
    async fn end(self, mut attempt: Attempt, ran: Ran<A>) {
        let profile = self.policy.profile;
        if let Some(finished) = attempt.take_outcome() {
            let said = match ran {
                Ran::Captured(Captured::Whole { mut head, body, trailers }, _) => {
                    repeatability::mark(&mut head.headers, profile, !matches!(finished, Finished::Freed));
                    Some(Response::from_parts(head, ReplyBody::whole(body, trailers)))
                }
                _ => None,
            };
            return self.send_ended(finished, said);
        }
        match ran {
            Ran::NotExecuted => {
                let finished = attempt.release(ErrorCode::NotSent).await;
                self.send_refusal(finished, Refusal::UpstreamUnavailable);
            }
            Ran::Uncertain | Ran::Captured(Captured::Broken, _) => {
                let (finished, _) = attempt.unknown(ErrorCode::Broken).await;
                let refusal = uncertain(false, &finished);
                self.send_refusal(finished, refusal);
            }
            Ran::Captured(Captured::Whole { mut head, body, trailers }, proof) => {
                if profile == Profile::Stripe {
                    reply::stripe(&mut head.headers, self.ask.identity.key.as_str());
                }
                let kept = capture::kept(&head, &body, trailers.as_ref(), self.policy);
                let finished =
                    attempt.proven(proof).finish(kept, head.headers.contains_key(RETRY_AFTER)).await;
                self.send_first(finished, head, ReplyBody::whole(body, trailers));
            }
            Ran::Captured(Captured::Unkept { mut head, read, rest }, proof) => {
                if profile == Profile::Stripe {
                    reply::stripe(&mut head.headers, self.ask.identity.key.as_str());
                }
                // Durable before the first byte leaves: after that the client may act on it.
                let retry_after = head.headers.contains_key(RETRY_AFTER);
                let finished = attempt.proven(proof).finish_unkept(head.status.as_u16(), retry_after).await;
                self.send_first(finished, head, ReplyBody::spliced(read, rest));
            }
            Ran::Panicked => {
                let rendered = Refusal::HandlerFailed.render(profile);
                let kept = KeptResponse::plain(rendered.status, rendered.content_type, rendered.body);
                let finished = attempt.finish(kept, false).await;
                self.send_refusal(finished, Refusal::HandlerFailed);
            }
        }
    }

    /// The handler's own answer, marked with what became of it.
    fn send_first(self, finished: Finished, mut head: response::Parts, body: ReplyBody<A>) {
        let _replies = tracing::debug_span!(telemetry::SPAN_REPLY).entered();
        let profile = self.policy.profile;
        repeatability::mark(&mut head.headers, profile, !matches!(finished, Finished::Freed));
        match finished {
            Finished::Stored(kept) => reply::first(&mut head.headers, &kept.record, profile),
            Finished::StoredUnkept(record) => {
                reply::first(&mut head.headers, &record, profile);
                reply::not_stored(&mut head.headers);
            }
            Finished::NotStored => reply::not_stored(&mut head.headers),
            Finished::Unsettled { .. } => reply::outcome_unknown(&mut head.headers, &self.ask.identity),
            Finished::Freed | Finished::Owed => {}
            Finished::Superseded(begun) => return self.send_instead(&begun),
        }
        cors::expose(&mut head.headers);
        self.send(Response::from_parts(head, body));
    }

    /// An answer of ibid's own, unless the record went on without this Attempt: then what is stored counts.
    fn send_refusal(self, finished: Finished, refusal: Refusal) {
        let _replies = tracing::debug_span!(telemetry::SPAN_REPLY).entered();
        let mut reply = reply::refusal(refusal, self.policy.profile, None);
        match finished {
            Finished::Superseded(begun) => return self.send_instead(&begun),
            Finished::NotStored => reply::not_stored(reply.headers_mut()),
            _ => {}
        }
        self.send(reply);
    }

    fn send_instead(self, begun: &Begun) {
        let reply = answer(begun, self.route, self.ask);
        self.send(reply);
    }

    fn send(self, reply: Reply<A>) {
        // A client that has gone gets nothing; its retry gets the stored answer.
        let _ = self.to_client.send(Outcome::Reply(Box::new(reply)));
    }
}

/// Refuses with the advice that a retry gets at this instant.
fn uncertain(timed_out: bool, finished: &Finished) -> Refusal {
    Refusal::UpstreamUncertain {
        timed_out,
        may_settle: !matches!(finished, Finished::Unsettled { settled_in: None }),
    }
}

/// How a run ended, for its histogram.
fn how_ended<A, P, T>(ran: &Result<Result<Ran<A>, P>, T>) -> &'static str {
    match ran {
        Ok(Ok(Ran::Captured(Captured::Whole { .. } | Captured::Unkept { .. }, _))) => "answered",
        Ok(Ok(Ran::NotExecuted)) => "not_executed",
        Ok(Ok(Ran::Uncertain | Ran::Captured(Captured::Broken, _))) => "broken",
        Ok(Err(_)) | Ok(Ok(Ran::Panicked)) => "panicked",
        Err(_) => "timed_out",
    }
}

/// An answer to a request that is not guarded.
fn passed<A>(mut answer: Response<A>) -> Reply<A> {
    outcome::hide_outcome(answer.headers_mut());
    answer.map(ReplyBody::passed)
}

/// The request as the handler sees it.
fn for_handler<Q: From<Bytes>>(attempt: Attempt, ask: &Ask, taken: Taken) -> (Request<Q>, Slot) {
    let mut request = as_sent(&taken);
    request.extensions_mut().insert(Guarded {
        tenant: ask.identity.tenant.clone(),
        key: ask.identity.key.clone(),
        attempt: attempt.number(),
        after: attempt.after(),
        policy: ask.policy.clone(),
    });
    let slot = Slot::new(attempt);
    request.extensions_mut().insert(slot.clone());
    (request, slot)
}

/// The request as the client sent it, with its body whole.
fn as_sent<Q: From<Bytes>>(taken: &Taken) -> Request<Q> {
    // Only who runs needs a copy to change; a replay is answered without one.
    let (mut head, body) = (taken.asked.head.clone(), taken.asked.body.clone());
    // What is kept must be readable by every retry, whatever codings that one takes.
    head.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    intake::set_whole_length(&mut head.headers, body.len());
    Request::from_parts(head, Q::from(body))
}

/// An answer that came after its time-out settles the record, if nobody else has.
async fn settle_late<A>(late: Late, ran: Ran<A>, policy: &Policy, key: &str) {
    match ran {
        Ran::Captured(Captured::Whole { mut head, body, trailers }, proof) => {
            if policy.profile == Profile::Stripe {
                reply::stripe(&mut head.headers, key);
            }
            let kept = capture::kept(&head, &body, trailers.as_ref(), policy);
            late.proven(proof).finish(kept, head.headers.contains_key(RETRY_AFTER)).await;
        }
        Ran::Captured(Captured::Unkept { head, .. }, proof) => {
            late.proven(proof)
                .finish_unkept(head.status.as_u16(), head.headers.contains_key(RETRY_AFTER))
                .await;
        }
        Ran::NotExecuted => {
            late.release(ErrorCode::NotSent).await;
        }
        Ran::Uncertain | Ran::Captured(Captured::Broken, _) | Ran::Panicked => {}
    }
}

/// The key could not be reserved: nothing was executed.
fn unavailable<A>(refused: &Unavailable, route: &Route) -> Reply<A> {
    let _replies = tracing::debug_span!(telemetry::SPAN_REPLY).entered();
    let profile = route.policy.profile;
    telemetry::reserved(Met::Unavailable, &route.pattern, profile);
    reply::refusal(Refusal::StoreUnavailable { retry_after: refused.retry_after() }, profile, None)
}

/// What the record says, in the profile's words.
fn answer<A>(begun: &Begun, route: &Route, ask: &Ask) -> Reply<A> {
    let profile = route.policy.profile;
    let span = tracing::debug_span!(
        telemetry::SPAN_REPLY,
        record = %ask.id.short(),
        first_trace = tracing::field::Empty
    );
    let _replies = span.enter();
    let (met, refusal) = match begun {
        Begun::Replay(kept) => {
            trace::link_to_first(&span, &kept.record);
            telemetry::reserved(Met::Replay, &route.pattern, profile);
            return reply::replay(&kept.record, &kept.response);
        }
        Begun::NotRetained => (Met::Gone, Refusal::ResponseNotRetained),
        Begun::Expired => (Met::Gone, Refusal::KeyExpired),
        // Counted when it runs.
        Begun::Accepted { new: true } => return reply::accepted(&ask.identity, profile),
        Begun::Accepted { new: false } => {
            telemetry::reserved(Met::InProgress, &route.pattern, profile);
            return reply::accepted(&ask.identity, profile);
        }
        // Its client is content with a place to look, also if it was begun by one that was not.
        Begun::InFlight { .. } if route.policy.in_flight == InFlight::Accepted || ask.later.is_some() => {
            telemetry::reserved(Met::InProgress, &route.pattern, profile);
            return reply::accepted(&ask.identity, profile);
        }
        Begun::InFlight { retry_in } => {
            (Met::InProgress, Refusal::RequestInProgress { retry_after: *retry_in })
        }
        Begun::Free | Begun::Run(_) => {
            (Met::InProgress, Refusal::RequestInProgress { retry_after: AGAIN_SOON })
        }
        Begun::Unknown { settled_in } => (Met::Unknown, Refusal::OutcomeUnknown { retry_after: *settled_in }),
        Begun::Mismatch => {
            // A client that reuses keys is broken or hostile; either way somebody should know.
            tracing::warn!(target: "ibid::security", record = %ask.id.short(), route = %route.pattern, "key misuse");
            (Met::KeyMisuse, Refusal::KeyReused)
        }
    };
    telemetry::reserved(met, &route.pattern, profile);
    reply::refusal(refusal, profile, Some(&ask.identity))
}

/// How long a body may take in all. A slower client holds a connection and a buffer for nothing; large bodies are
/// bounded anyway.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// When to come again to what is free by now or about to end: the field counts in seconds.
const AGAIN_SOON: Duration = Duration::from_secs(1);

/// To a client that waits for the end of its own request.
const SOON: Begun = Begun::InFlight { retry_in: AGAIN_SOON };
