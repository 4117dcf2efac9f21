//! `transact` for a request whose key is reserved in the handler's own transaction.

use ibid_core::sql::Database;

use super::{ReserveError, UnreservedRequest};
use crate::transaction::transact::RunLimit;
use crate::transaction::{Completion, TxError, TxHandle, TxResponse, TxResult};

impl UnreservedRequest {
    /// Reserves the key, runs `work` and completes the record in one transaction of `database`.
    ///
    /// A duplicate does not run: the layer sends the response that the request has already. For the rest it works like
    /// [`Attempt::transact`](crate::Attempt::transact): **`work` may run several times**, and a response with a status of
    /// 400 and above rolls the work back.
    ///
    /// # Errors
    ///
    /// Returns the error of `work`, or why the transaction could not begin, reserve the key or commit. Nothing is stored
    /// then, not even the reservation, except after [`TxError::CommitUnknown`].
    ///
    /// # Cancel safety
    ///
    /// Dropped before the commit was sent, everything is rolled back. Dropped later, the commit may have happened.
    pub async fn transact<D, R, W, F>(&self, database: &D, mut work: W) -> TxResult
    where
        D: Database,
        R: Into<Completion>,
        W: FnMut(TxHandle<D::Tx>) -> F,
        F: Future<Output = Result<R, TxError>>,
    {
        let mut runs = RunLimit::new();
        loop {
            let run = async {
                let inside = match self.begin(database).await {
                    Ok(inside) => *inside,
                    Err(ReserveError::Answered) => return Ok(TxResponse::known_to_layer()),
                    Err(ReserveError::Failed(error)) => return Err(error),
                };
                let (inside, completion) = inside.run(&mut work, TxError::from).await?;
                inside.complete(completion.into()).await
            };
            match run.await {
                Err(error) => runs.pause_after(error).await?,
                done => return done,
            }
        }
    }
}
