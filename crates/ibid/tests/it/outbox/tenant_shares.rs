//! One worker, several tenants: neither a backlog nor a provider that hangs keeps a worker from the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ibid::outbox::{
    BoxError, CallOutcome, CallResult, EffectCall, EffectHandler, NewEffect, RawPayload, SettledEffect,
    Worker, WorkerBuilder,
};
use ibid::outcome::{Begin, Outcome};
use ibid::transaction::Database;
use ibid_core::key::Key;
use ibid_core::policy::Policy;
use ibid_core::response::Response;
use ibid_core::scope::{Identity, Operation, Tenant};
use ibid_core::sql::SqlTx;
use tokio::sync::Semaphore;

use super::every_database::{Site, on_every_database};
use super::harness::Nothing;

on_every_database!(
    a_backlog_of_one_tenant_does_not_delay_the_others,
    tenants_and_kinds_behind_a_backlog_take_turns,
    a_hanging_provider_of_one_tenant_leaves_slots_to_others,
    a_deployment_without_tenants_uses_all_slots,
);

async fn a_backlog_of_one_tenant_does_not_delay_the_others<D: Database + Clone + 'static>(site: Site<D>) {
    let calls = Calls::default();
    enqueue(&site, "ann", "charge", 20).await;
    enqueue(&site, "bob", "charge", 1).await;
    enqueue(&site, "cid", "charge", 3).await;
    let worker = building(&site, &calls).concurrency(4).build().unwrap();
    assert_eq!(worker.run_once().await.unwrap().done, 4);
    assert_eq!(calls.by_tenant(), [("ann", 2), ("bob", 1), ("cid", 1)]);
    while !worker.run_once().await.unwrap().is_idle() {}
    assert_eq!(calls.by_tenant(), [("ann", 20), ("bob", 1), ("cid", 3)]);
}

async fn tenants_and_kinds_behind_a_backlog_take_turns<D: Database + Clone + 'static>(site: Site<D>) {
    let calls = Calls::default();
    enqueue(&site, "ann", "charge", 10).await;
    enqueue(&site, "bob", "charge", 10).await;
    enqueue(&site, "cid", "charge", 1).await;
    enqueue(&site, "dan", "mail", 1).await;
    // One slot is left by the first tenant. Each walk gives it to the next one.
    let worker = building(&site, &calls).concurrency(2).build().unwrap();
    for _ in 0..3 {
        assert_eq!(worker.run_once().await.unwrap().done, 2);
    }
    assert_eq!(calls.by_tenant(), [("ann", 3), ("bob", 1), ("cid", 1), ("dan", 1)]);
}

async fn a_hanging_provider_of_one_tenant_leaves_slots_to_others<D: Database + Clone + 'static>(
    site: Site<D>,
) {
    let calls = Calls { hangs: Some("ann"), ..Calls::default() };
    enqueue(&site, "ann", "charge", 6).await;
    // After its first look, only enqueues and ends of effects make this worker look.
    let worker =
        building(&site, &calls).concurrency(4).poll_every(Duration::from_secs(3600)).build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(async move { worker.run_until(async { drop(stopped.await) }).await });
    calls.until_called(2).await;
    enqueue(&site, "bob", "charge", 5).await;
    calls.until_called(5).await;
    assert_eq!(calls.by_tenant(), [("ann", 2), ("bob", 5)]);
    // The effects that were left for another slot need no poll once there is one.
    calls.gate.add_permits(6);
    calls.until_called(4).await;
    stop.send(()).unwrap();
    running.await.unwrap();
    assert_eq!(calls.by_tenant(), [("ann", 6), ("bob", 5)]);
}

async fn a_deployment_without_tenants_uses_all_slots<D: Database + Clone + 'static>(site: Site<D>) {
    let calls = Calls::default();
    enqueue(&site, Tenant::only().as_str(), "charge", 5).await;
    let worker = building(&site, &calls).concurrency(4).build().unwrap();
    assert_eq!(worker.run_once().await.unwrap().done, 4);
    assert_eq!(worker.run_once().await.unwrap().done, 1);
}

/// A provider that counts its calls by tenant. Those of one tenant may hang until the gate is opened.
#[derive(Clone)]
struct Calls {
    tenants: Arc<Mutex<BTreeMap<String, u32>>>,
    called: Arc<Semaphore>,
    gate: Arc<Semaphore>,
    hangs: Option<&'static str>,
}

impl Default for Calls {
    fn default() -> Calls {
        let closed = || Arc::new(Semaphore::new(0));
        Calls { tenants: Arc::default(), called: closed(), gate: closed(), hangs: None }
    }
}

impl Calls {
    fn by_tenant(&self) -> Vec<(&'static str, u32)> {
        let tenants = self.tenants.lock().unwrap();
        tenants.iter().map(|(tenant, calls)| (&*tenant.clone().leak(), *calls)).collect()
    }

    /// Waits for this many more calls.
    async fn until_called(&self, times: u32) {
        let called = self.called.acquire_many(times);
        tokio::time::timeout(PATIENCE, called).await.expect("they are called").unwrap().forget();
    }
}

impl<T: SqlTx> EffectHandler<T> for Calls {
    type Payload = RawPayload;

    async fn call(&self, call: &EffectCall) -> CallOutcome {
        *self.tenants.lock().unwrap().entry(call.tenant.clone()).or_default() += 1;
        self.called.add_permits(1);
        if self.hangs == Some(&*call.tenant) {
            self.gate.acquire().await.unwrap().forget();
        }
        CallOutcome::Made(CallResult::default())
    }

    async fn record(&self, _: &EffectCall, _: &SettledEffect, _: &mut T) -> Result<(), BoxError> {
        Ok(())
    }
}

fn building<D: Database + Clone + 'static>(site: &Site<D>, calls: &Calls) -> WorkerBuilder<D>
where
    D::Tx: 'static,
{
    let builder = Worker::builder(site.ibid.clone(), site.database.clone());
    builder.on("charge", calls.clone()).on("mail", calls.clone())
}

/// Enqueues this many effects of a tenant, in one transaction.
async fn enqueue<D: Database>(site: &Site<D>, tenant: &str, kind: &str, effects: u32) {
    let identity = Identity {
        tenant: Tenant::new(tenant).unwrap(),
        operation: Operation { method: "POST".into(), path: "/pay".into() },
        key: Key::stored("k").unwrap(),
    };
    let ask = site.ibid.ask(identity, Arc::new(Policy::default()), Arc::new(Nothing));
    let Begin::Run(mut attempt) = site.ibid.begin(ask).await.unwrap() else { panic!("it is new") };
    let mut inside = attempt.join_tx(site.database.begin().await.unwrap()).await.unwrap();
    for number in 0..effects {
        inside.enqueue(NewEffect::new(format!("{kind} {number}"), kind, "")).await.unwrap();
    }
    let response = Response::plain(201, "text/plain", "accepted".to_owned());
    assert!(matches!(inside.finish(response).await.unwrap(), Outcome::Completed(_)));
}

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);
