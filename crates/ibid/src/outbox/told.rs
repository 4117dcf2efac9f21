//! What somebody outside was heard to say about an Effect, put to use. What it proves is `ibid_core::machine`'s to say;
//! what follows from it is written as a worker writes it, business rows and all, by a process that has a worker for that
//! kind. Any other leaves it kept: upkeep beside such a worker finds it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ibid_core::change::{Happened as Line, History};
use ibid_core::effect::StoredEffect;
use ibid_core::evidence::{EffectAt, Kept, Open};
use ibid_core::machine::{Answer, Bearing, EffectEvent, Found, bearing_on_effect};
use ibid_core::response::Response;
use ibid_core::sql::Database;
use ibid_core::store::{Pending, Store, StoreError};
use metrics::counter;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::carry::count_move;
use super::ending::{Ended, Ending, Happened};
use super::handler::{Call, Handler, Made};
use super::operator::{OperatorError, work};
use super::statements;
use crate::evidence::Hearing;
use crate::ibid::Ibid;
use crate::telemetry;
use crate::transaction::statements as records;

/// The Effects that are named, each if it is there; those of one moment.
pub(crate) async fn find(store: &dyn Store, named: Vec<EffectAt>) -> Result<Vec<Sighting>, StoreError> {
    // Where there is no outbox there are no Effects.
    let Some(sql) = store.sql() else { return Ok(named.iter().map(|_| Sighting::Nobody).collect()) };
    let now = sql.now();
    let found = work(sql, move |tx| {
        Box::pin(async move {
            let mut all = Vec::with_capacity(named.len());
            for at in &named {
                all.push(Sighting::of(statements::find(tx, at, now).await?));
            }
            Ok(all)
        })
    });
    found.await.map_err(broken)
}

/// What a name given by a provider led to.
pub(crate) enum Sighting {
    /// Nothing, or nothing yet.
    Nobody,
    /// This Effect.
    One(Box<StoredEffect>),
    /// More than one, so nobody knows which is meant.
    Several,
}

impl Sighting {
    fn of(mut found: Vec<StoredEffect>) -> Sighting {
        match (found.pop(), found.is_empty()) {
            (None, _) => Sighting::Nobody,
            (Some(effect), true) => Sighting::One(Box::new(effect)),
            (Some(_), false) => Sighting::Several,
        }
    }

    /// What the evidence means for it.
    pub(crate) fn bearing(&self, kept: &Kept) -> Bearing {
        match self {
            Sighting::Nobody => bearing_on_effect(None, kept),
            Sighting::One(effect) => bearing_on_effect(Some(effect), kept),
            // A provider's id that is not one call's: a person must hear of it.
            Sighting::Several => Bearing::Contradicts,
        }
    }
}

/// Puts kept evidence to use, as far as it has any.
pub(crate) async fn weigh(ibid: &Ibid, kept: &Kept, at: &EffectAt) -> Result<Hearing, StoreError> {
    let source = &kept.evidence.name.source;
    for _ in 0..TRIES_MAX {
        let sighting = find(&**ibid.store(), vec![at.clone()]).await?.pop().unwrap_or(Sighting::Nobody);
        let hearing = match (sighting.bearing(kept), sighting) {
            (Bearing::Settles, Sighting::One(effect)) => {
                let Some(desk) = ibid.outbox().desks.of(&effect.kind) else { return Ok(Hearing::Early) };
                let seq = effect.seq;
                // Apart from the caller, who may lose patience: a commit is never cancelled.
                let (ibid, kept) = (ibid.clone(), kept.clone());
                let settled = tokio::spawn(async move { desk.settle(&ibid, &effect, &kept).await }).await;
                match settled.map_err(|error| StoreError::transient("sql", SETTLE, error))? {
                    Ended::Moved { .. } => {
                        tracing::info!(effect = seq, source, "an effect was settled by a webhook");
                        return Ok(Hearing::Settled);
                    }
                    Ended::Lost => continue,
                    Ended::Unwritten => {
                        return Err(StoreError::transient("sql", SETTLE, "its end could not be written"));
                    }
                }
            }
            (Bearing::Settles | Bearing::Early, _) => return Ok(Hearing::Early),
            // Whoever used it up meanwhile may have made it look like something else.
            _ if !is_open(ibid.store(), kept).await? => return Ok(Hearing::Duplicate),
            (Bearing::Contradicts, sighting) => {
                contradicted(ibid, kept, &sighting).await?;
                Hearing::Contradicts
            }
            (Bearing::Premature, _) => Hearing::Premature,
            (Bearing::Stale, _) => Hearing::Stale,
            (Bearing::Known, _) => Hearing::Known,
        };
        ibid.store().dismiss(vec![kept.seq]).await?;
        return Ok(hearing);
    }
    // It changes at every look, so somebody else is at it. Upkeep looks again.
    Ok(Hearing::Early)
}

async fn is_open(store: &Arc<dyn Store>, kept: &Kept) -> Result<bool, StoreError> {
    let open = store.evidence(Open::Of(kept.evidence.about.id()), OF_EFFECT_MAX).await?;
    // More than can be seen: then it is taken for open, and what it says is told.
    Ok(open.len() as u32 == OF_EFFECT_MAX || open.iter().any(|open| open.seq == kept.seq))
}

/// What is stored stays as it is; the history grows.
async fn contradicted(ibid: &Ibid, kept: &Kept, sighting: &Sighting) -> Result<(), StoreError> {
    let name = &kept.evidence.name;
    counter!(telemetry::LATE_ANSWERS).increment(1);
    let Sighting::One(effect) = sighting else {
        tracing::error!(
            source = name.source,
            "more than one effect has the provider's id that a webhook names"
        );
        return Ok(());
    };
    tracing::error!(effect = effect.seq, source = name.source, "a webhook contradicts what is stored");
    let says = match &kept.evidence.what {
        Found::Executed(Answer { provider_id: Some(id), .. }) => format!("executed as `{id}`"),
        Found::Executed(_) => "executed".to_owned(),
        Found::NotExecuted | Found::Nothing => "not executed".to_owned(),
    };
    let detail = format!(
        "webhook: effect `{}` {says}, although it is {} (event `{}` of `{}`)",
        effect.name,
        effect.state.name(),
        name.event,
        name.source
    );
    let (record, line) = (effect.record, History { what: Line::LateAnswer, detail });
    let Some(sql) = ibid.store().sql() else { return Ok(()) };
    let now = sql.now();
    let noted = work(sql, move |tx| Box::pin(async move { records::note(tx, &record, &line, now).await }));
    noted.await.map_err(broken)
}

/// The Effect has just become unknown, or waits to be made again. Something may have been heard of it before.
/// `accepted_as` is the provider's id, if it has just given one.
pub(super) async fn doubted(ibid: &Ibid, effect: &StoredEffect, accepted_as: Option<String>) {
    ibid.weigh_all_of(EffectAt::DownstreamKey(effect.downstream_key.clone()).id()).await;
    if let Some(id) = accepted_as.or_else(|| effect.provider_id.clone()) {
        ibid.weigh_all_of(EffectAt::ProviderId { kind: effect.kind.clone(), id }.id()).await;
    }
}

/// Who can write what follows from evidence on Effects, in this process: its workers, for as long as they are there.
#[derive(Default)]
pub(crate) struct Desks(Mutex<Vec<Weak<dyn Settle>>>);

impl Desks {
    pub(super) fn add(&self, desk: Weak<dyn Settle>) {
        let mut desks = self.0.lock();
        desks.retain(|desk| desk.strong_count() > 0);
        desks.push(desk);
    }

    fn of(&self, kind: &str) -> Option<Arc<dyn Settle>> {
        let desks = self.0.lock();
        // As with a worker's handlers: the one that came later counts.
        desks.iter().rev().filter_map(Weak::upgrade).find(|desk| desk.serves(kind))
    }
}

/// Writes what follows from evidence on an Effect.
pub(super) trait Settle: Send + Sync {
    /// Whether it has a handler for this kind.
    fn serves(&self, kind: &str) -> bool;

    /// Settles an Effect that no worker holds, and uses up the evidence.
    fn settle<'a>(&'a self, ibid: &'a Ibid, effect: &'a StoredEffect, kept: &'a Kept) -> Pending<'a, Ended>;
}

/// What a worker needs to write the end of an Effect.
pub(super) struct Desk<D: Database> {
    pub(super) database: Arc<D>,
    /// By kind.
    pub(super) served: HashMap<String, Served<D::Tx>>,
}

/// What serves one kind.
pub(super) struct Served<T> {
    pub(super) handler: Arc<dyn Handler<T>>,
    /// How long a call, a look at the provider, or its rows may take.
    pub(super) timeout: Duration,
}

impl<D: Database> Settle for Desk<D> {
    fn serves(&self, kind: &str) -> bool {
        self.served.contains_key(kind)
    }

    fn settle<'a>(&'a self, ibid: &'a Ibid, effect: &'a StoredEffect, kept: &'a Kept) -> Pending<'a, Ended> {
        Box::pin(async move {
            // It was looked for by whoever asks.
            let Some(Served { handler, timeout }) = self.served.get(&effect.kind) else { return Ended::Lost };
            let until = Instant::now() + SETTLE_FOR;
            let call = Call::new(effect, until);
            let mut happened = match &kept.evidence.what {
                Found::Executed(answer) => {
                    let made = handler.told(&call, made(answer));
                    Happened::made(EffectEvent::Verified(Some(true)), made)
                }
                Found::NotExecuted | Found::Nothing => {
                    Happened::because(EffectEvent::Verified(Some(false)), "a webhook said: not made")
                }
            };
            happened.told = Some(kept.evidence.name.clone());
            let (database, handler) = (&*self.database, &**handler);
            let ending = Ending {
                ibid,
                database,
                handler,
                call: &call,
                effect,
                timeout: (*timeout).min(SETTLE_FOR),
                until,
            };
            let ended = ending.write(happened).await;
            if let Ended::Moved { to, due } = ended {
                count_move(effect, to, due);
                // What waited behind it in its aggregate may go now.
                ibid.outbox().enqueued.notify_waiters();
            }
            ended
        })
    }
}

/// What the webhook says was made, in its own words.
fn made(answer: &Answer) -> Made {
    let response = answer.kept.as_deref().and_then(|bytes| Response::from_bytes(bytes).ok());
    Made {
        result: response.as_ref().map(|response| response.body.clone()).unwrap_or_default(),
        provider_id: answer.provider_id.clone(),
        answer: response,
    }
}

fn broken(error: OperatorError) -> StoreError {
    match error {
        OperatorError::Store(error) => error,
        other => StoreError::lasting("sql", "find effects", other),
    }
}

const SETTLE: &str = "settle an effect";

/// Events about one Effect that are looked at: a charge has a handful in its life.
const OF_EFFECT_MAX: u32 = 64;

/// How often one webhook is weighed anew because the Effect changed: it does so a handful of times in its life.
const TRIES_MAX: u32 = 4;

/// How long the end of an Effect is tried to be written. Half of a webhook's patience: what fails is told in time, and
/// upkeep tries again.
const SETTLE_FOR: Duration = Duration::from_secs(5);
