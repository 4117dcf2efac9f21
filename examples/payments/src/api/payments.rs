//! `POST /payments`: payment, effect and completion in one transaction. The worker charges once it has committed.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use ibid::axum::{Guarded, HeldAttempt};
use ibid::outcome::Outcome;
use ibid::transaction::TxError;
use serde_json::json;

use super::{App, kept_answer};
use crate::account::Account;
use crate::charge::ChargePayment;
use crate::db::payments::new_payment_id;
use crate::db::{Backend, DbError, Writes as _};
use crate::input::NewPayment;
use crate::problem::Problem;
use crate::provider_client::ChargeRequest;

/// The guard has reserved the key; what is committed here is what every retry gets.
pub(super) async fn create<D: Backend>(
    State(app): State<App<D>>,
    guarded: Guarded,
    mut held: HeldAttempt,
    payment: NewPayment,
) -> Result<Outcome, NotWritten> {
    let account = Account::of_tenant(&guarded.tenant);
    let mut tries = 1;
    loop {
        match write(&app, &mut held, &account, &payment).await {
            Err(error) if error.is_again() && tries < TRIES_MAX => {
                tokio::time::sleep(AGAIN_AFTER * tries).await;
                tries += 1;
            }
            ended => return ended,
        }
    }
}

/// All or nothing: dropped before `finish` has committed, the transaction is undone.
async fn write<D: Backend>(
    app: &App<D>,
    held: &mut HeldAttempt,
    account: &Account,
    payment: &NewPayment,
) -> Result<Outcome, NotWritten> {
    let payment_id = new_payment_id();
    let tx = app.database.begin().await.map_err(TxError::from)?;
    let mut inside = held.inside(tx).await?;
    let record_id = inside.record_id();
    inside.insert_payment(&payment_id, account, payment, Some(record_id.as_bytes())).await?;
    let asked = ChargeRequest {
        amount_cents: payment.amount_cents,
        currency: payment.currency.clone(),
        customer_id: payment.customer_id.clone(),
        reference: Some(payment_id.clone()),
    };
    let location = format!("/payments/{payment_id}");
    let body = json!({ "paymentId": payment_id, "status": "pending" });
    inside.enqueue(ChargePayment { payment_id, asked }.effect(app.lease, app.in_doubt)?).await?;
    Ok(inside.finish(kept_answer(201, &location, &body)).await?)
}

/// Nothing was committed, or the record tells the retry that it was.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotWritten {
    #[error(transparent)]
    Tx(#[from] TxError),
    #[error(transparent)]
    Db(#[from] DbError),
    #[error("the effect can't be written down")]
    Effect(#[from] serde_json::Error),
}

impl NotWritten {
    /// Whether another transaction was in the way (40001, 40P01, busy).
    fn is_again(&self) -> bool {
        match self {
            NotWritten::Tx(error) => error.is_again(),
            NotWritten::Db(error) => error.is_again(),
            NotWritten::Effect(_) => false,
        }
    }
}

/// A 503 leaves the key free: the client sends the same request again.
impl IntoResponse for NotWritten {
    fn into_response(self) -> Response {
        tracing::error!(error = &self as &dyn std::error::Error, "a payment was not written");
        Problem::unavailable().into_response()
    }
}

/// Each time somebody who was in the way has committed, so more than a few mean a crowd: then the client's own retry is
/// the better pause.
const TRIES_MAX: u32 = 8;

/// About one commit, and longer each time: those who met once should not meet again.
const AGAIN_AFTER: Duration = Duration::from_millis(5);
