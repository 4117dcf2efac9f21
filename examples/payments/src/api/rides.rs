//! `POST /rides`: three phases. What has committed is not run again, whoever goes on: the client's retry or the
//! sweeper of any node.
//!
//! A resumed request comes without its credentials, so the account is the guard's tenant.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, http};
use http::StatusCode;
use http::header::LOCATION;
use ibid::axum::{Guarded, HeldAttempt};
use ibid::http::TraceContext;
use ibid::phase::{Care, DownstreamKey, NotDone, PhaseError, Verified};
use serde_json::json;

use super::App;
use crate::account::Account;
use crate::charge::{self, Asked, Charge, InDoubt};
use crate::db::payments::Settled;
use crate::db::rides::{new_receipt_id, new_ride_id};
use crate::db::{Backend, DbError, Writes as _};
use crate::input::NewRide;
use crate::problem::Problem;
use crate::provider_client::ChargeRequest;

pub(super) async fn create<D: Backend>(
    State(app): State<App<D>>,
    guarded: Guarded,
    trace: Option<Extension<TraceContext>>,
    mut held: HeldAttempt,
    ride: NewRide,
) -> Result<Response, Stopped> {
    let account = Account::of_tenant(&guarded.tenant);
    let record_id = held.record_id();

    // 1. The ride, in one transaction. Its id is the phase's result: a later attempt is given the same.
    let booked = ride.clone();
    let ride_id: String = held
        .phase("ride_created", &app.database, |inside| {
            let (account, ride) = (account.clone(), booked.clone());
            Box::pin(async move {
                let ride_id = new_ride_id();
                inside.insert_ride(&ride_id, &account, &ride, Some(record_id.as_bytes())).await?;
                Ok::<_, DbError>(ride_id)
            })
        })
        .await?;

    // 2. The charge, with no transaction open. What a later attempt may do about a call of this one depends on what the
    // processor makes of the phase's key.
    let asked = ChargeRequest {
        amount_cents: ride.payment.amount_cents,
        currency: ride.payment.currency,
        customer_id: ride.payment.customer_id,
        reference: Some(ride_id.clone()),
    };
    let is_first = guarded.attempt == 1;
    let provider = &app.patient_provider.traced(trace.map(|Extension(trace)| trace));
    let call =
        async |key: DownstreamKey| match charge::ask(provider, &key.into_string(), &asked, is_first).await {
            Asked::Ended(charge) => Ok(charge),
            Asked::NotMade(why, _) => Err(NotDone::NotMade(why)),
            Asked::Refused(why) | Asked::Uncertain(why) => Err(NotDone::Uncertain(why)),
        };
    let verify = async |key: DownstreamKey| match charge::find(provider, &key.into_string()).await {
        Ok(Some(charge)) => Verified::Made(charge),
        Ok(None) => Verified::NotMade,
        Err(_) => Verified::Unsure,
    };
    let name = "charge_created";
    let charge: Charge = match app.in_doubt {
        InDoubt::Repeat => held.outside(name, Care::Repeatable, call).await?,
        InDoubt::Ask { settle } => held.outside_verified(name, settle, verify, call).await?,
        InDoubt::Wait => held.outside(name, Care::Once, call).await?,
    };

    // 3. What came of it, in one transaction.
    let (id, charge_id) = (ride_id.clone(), charge.charge_id.clone());
    if charge.settled() == Settled::Failed {
        held.phase("ride_failed", &app.database, |inside| {
            let (id, charge_id) = (id.clone(), charge_id.clone());
            Box::pin(async move {
                inside.settle_ride(&id, Settled::Failed, charge_id.as_deref()).await?;
                Ok::<_, DbError>(())
            })
        })
        .await?;
        let body = json!({ "rideId": ride_id, "status": "failed", "detail": "the card was declined" });
        return Ok(answer(StatusCode::PAYMENT_REQUIRED, &ride_id, body));
    }
    let receipt_id: String = held
        .phase("receipt", &app.database, |inside| {
            let (id, charge_id) = (id.clone(), charge_id.clone());
            Box::pin(async move {
                let receipt_id = new_receipt_id();
                inside.settle_ride(&id, Settled::Succeeded, charge_id.as_deref()).await?;
                inside.receipt_ride(&id, &receipt_id).await?;
                Ok::<_, DbError>(receipt_id)
            })
        })
        .await?;

    // The guard stores the answer, and only then sends it. If that fails, the next attempt comes here without having
    // done anything again.
    let body = json!({ "rideId": ride_id, "status": "succeeded", "receiptId": receipt_id });
    Ok(answer(StatusCode::CREATED, &ride_id, body))
}

fn answer(status: StatusCode, ride_id: &str, body: serde_json::Value) -> Response {
    (status, [(LOCATION, format!("/rides/{ride_id}"))], Json(body)).into_response()
}

/// The ride stands where its last phase left it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    #[error("the rows are not written: {0:?}")]
    Rows(#[from] PhaseError<DbError>),
    #[error("the charge is not made, or not certainly: {0:?}")]
    Charge(PhaseError<String>),
}

impl From<PhaseError<String>> for Stopped {
    fn from(error: PhaseError<String>) -> Stopped {
        Stopped::Charge(error)
    }
}

/// A 503 leaves the key free: the client's retry goes on after the last phase.
impl IntoResponse for Stopped {
    fn into_response(self) -> Response {
        tracing::error!(error = &self as &dyn std::error::Error, "a ride stopped between two phases");
        Problem::unavailable().into_response()
    }
}
