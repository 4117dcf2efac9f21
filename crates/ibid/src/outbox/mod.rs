//! The outbox: calls to other services that you enqueue in your transaction and that a [`Worker`] makes after the commit.
//!
//! A call inside a transaction is made even if the transaction rolls back. A call after it is forgotten if the process dies
//! first. An effect is a row: it exists exactly if your rows do, and it stays until its call was made and the result was
//! recorded, or an operator has settled it. The provider gets the same key with every try.
//!
//! After a lost reply, ibid cannot tell whether the call was made. Declare with the effect what happens then:
//!
//! | declared | after an uncertain call, or if the worker crashed |
//! | --- | --- |
//! | nothing | the effect becomes `unknown`: ibid does not call again, and an operator has to find out |
//! | [`repeatable`](NewEffect::repeatable) | a worker calls again, as long as the provider remembers the key |
//! | [`verified`](NewEffect::verified) | a worker asks [`EffectHandler::verify`], once the call must have settled |
//!
//! Whatever was declared, a signed webhook of the provider also settles an `unknown` effect, if it names the key or the
//! provider's id (`ibid::http::hooks`, or [`Ibid::report_evidence`](crate::Ibid::report_evidence)).
//!
//! ```
//! # use std::sync::Arc;
//! # use ibid::{Begin, Ibid, Settings};
//! # use ibid::{Identity, Key, Operation, Policy, RequestView, Response, Tenant};
//! # use ibid::store::sqlite::{SqliteOptions, SqliteStore};
//! # use ibid::transaction::{Database, rusqlite::{Rusqlite, RusqliteTx}};
//! # struct Body;
//! # impl RequestView for Body {
//! #     fn method(&self) -> &str { "POST" }
//! #     fn path(&self) -> &str { "/payments" }
//! #     fn query(&self) -> Option<&str> { None }
//! #     fn header_lines(&self, _: &str, _: &mut dyn FnMut(&[u8])) {}
//! #     fn body(&self) -> &[u8] { b"{}" }
//! # }
//! use ibid::outbox::{BoxError, EffectCall, EffectHandler, CallResult, NewEffect, CallOutcome, SettledEffect, Worker};
//!
//! struct Charge;
//!
//! impl EffectHandler<RusqliteTx> for Charge {
//!     type Payload = String; // or your own type with `#[derive(Deserialize)]`
//!
//!     async fn call(&self, call: &EffectCall<String>) -> CallOutcome {
//!         // Call the provider here, with the key `call.downstream_key` and before `call.deadline`.
//!         let id = format!("ch_{}", call.downstream_key);
//!         CallOutcome::Made(CallResult::default().with(|made| made.provider_id = Some(id)))
//!     }
//!
//!     async fn record(
//!         &self,
//!         call: &EffectCall<String>,
//!         settled: &SettledEffect,
//!         tx: &mut RusqliteTx,
//!     ) -> Result<(), BoxError> {
//!         let state = match settled {
//!             SettledEffect::Done(_) => "succeeded",
//!             // An earlier try may have made the call: only the provider can tell.
//!             SettledEffect::Dead { .. } | SettledEffect::Unknown { .. } => "in review",
//!         };
//!         tx.execute("update payment set state = ?2 where id = ?1", (&call.payload, state))?;
//!         Ok(())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! # let directory = tempfile::tempdir()?;
//! # let file = directory.path().join("app.db");
//! # let store = Arc::new(SqliteStore::open(&file, SqliteOptions::default())?);
//! # let ibid = Ibid::start(store, Settings::default()).await?;
//! # let identity = Identity {
//! #     tenant: Tenant::only(),
//! #     operation: Operation { method: "POST".into(), path: "/payments".into() },
//! #     key: Key::stored("order-7")?,
//! # };
//! # let ask = ibid.ask(identity, Arc::new(Policy::default()), Arc::new(Body));
//! # let connection = rusqlite::Connection::open(&file)?;
//! # connection.execute_batch("create table payment (id text, state text)")?;
//! let database = Rusqlite::new(connection);
//! # let Begin::Run(mut attempt) = ibid.begin(ask).await? else { unreachable!() };
//! let created = attempt
//!     .transact(&database, async |mut tx| {
//!         tx.conn().execute("insert into payment values ('p1', 'pending')", [])?;
//!         tx.enqueue(NewEffect::json("charge", &"p1")?.repeatable()).await?;
//!         Ok(Response::json(201, &"p1"))
//!     })
//!     .await?;
//! assert_eq!(created.response().map(|response| response.status), Some(201));
//!
//! let worker = Worker::builder(ibid.clone(), database.clone()).on("charge", Charge).build()?;
//! assert_eq!(worker.run_once().await?.done, 1); // a service spawns `worker.run_until(stop)`
//! # let tx = database.begin().await?;
//! # let state: String = tx.query_row("select state from payment", [], |row| row.get(0))?;
//! # assert_eq!(state, "succeeded");
//! # Ok(()) }
//! ```
//!
//! A worker polls the outbox about once a second. It sees effects that its own process enqueues at once, and those of other
//! processes at its next poll. One tenant gets at most half of a worker's calls at once. Effects of one [aggregate](NewEffect::ordered_by) run one after the other. A dead letter
//! blocks the effects behind it until an operator [retries](crate::operator::Operator::retry) or
//! [discards](crate::operator::Operator::discard) it.

pub use ibid_core::effect::{EffectFilter, EffectRules, NewEffect, Safety, StoredEffect};
pub use ibid_core::machine::EffectState;

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub(crate) mod copy;

pub(crate) mod dyn_handler;

mod due_effects;

mod handler;

mod handler_limits;

mod claim_due;

mod payload;

mod worker;

pub(crate) mod execute;

pub(crate) mod record_result;

mod unrecorded_result;

pub(crate) mod statements;

mod mysql_statements;

pub(crate) mod store_tx;

#[cfg(feature = "opentelemetry")]
use crate::trace::continue_trace;

/// Does nothing: without OpenTelemetry a span has no parent, and only the handler gets the trace of an effect.
#[cfg(not(feature = "opentelemetry"))]
fn continue_trace(_: &tracing::Span, _: &str) {}

use tokio::sync::Notify;

use crate::evidence::effect::KindRegistry;

/// The outbox's state in one process.
#[derive(Default)]
pub(crate) struct OutboxState {
    /// Notified when this process has enqueued or unblocked effects, so that its workers need not wait for their next poll.
    pub(crate) enqueued: Notify,
    /// The kinds of effects that workers of this process have handlers for.
    pub(crate) kinds: KindRegistry,
}

pub use handler::{
    BoxError, CallOutcome, CallResult, EffectCall, EffectHandler, SettledEffect, VerifyOutcome,
};
pub use handler_limits::HandlerLimits;
pub use payload::{EffectPayload, RawPayload};
pub use worker::{Worker, WorkerBuilder, WorkerError, WorkerRound};
