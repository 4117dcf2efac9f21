//! The outbox: calls to the outside, enqueued in the transaction that needs them and carried out by a worker after it
//! has committed.
pub(crate) mod statements;

mod handler;

mod worker;

mod carry;

mod ending;

mod operator;

pub use handler::{BoxError, Call, Handler, Made, Outcome, Settled, Verified};
pub use operator::{OperatorError, discard, list, retry};
pub use worker::{Builder, Round, Worker, WorkerError};
