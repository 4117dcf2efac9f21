//! `POST /rides`: three phases. A committed phase does not run again, whether the client's retry continues or the sweeper
//! of any node does.
//!
//! A resumed request has no credentials, so the account is ibid's tenant.

use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use http::StatusCode;
use http::header::LOCATION;
use ibid::axum::{GuardedRequest, HeldAttempt};
use ibid::core::scope::RecordId;
use ibid::http::TraceContext;
use ibid::phase::{CallVerification, Care, DownstreamKey, OutsideCallError, PhaseError};
use ibid::transaction::TxError;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::account::Account;
use crate::api::App;
use crate::db::{Backend, Db, SqlValue, Statements, on_pool};
use crate::input::{NewRide, Valid};
use crate::payments::rfc3339;
use crate::problem::Problem;
use crate::processor::{Charge, ChargeOutcome, ChargeRequest};
use crate::worker::InDoubt;

/// Books a ride and charges it.
pub(crate) async fn create<D: Backend>(
    State(app): State<App<D>>,
    guarded: GuardedRequest,
    trace: Option<Extension<TraceContext>>,
    mut held: HeldAttempt,
    Valid(ride): Valid<NewRide>,
) -> Result<Response, Problem> {
    let (record_id, account, ride) = (held.record_id(), guarded.tenant.as_str(), &ride);

    // 1. The ride, in one transaction. Its id is the result of the phase: later attempts get the same id.
    let ride_id: String = held
        .phase("ride_created", &app.database, async |mut tx| {
            insert_ride(&mut **tx, account, ride, record_id).await
        })
        .await
        .map_err(|error| stopped(&error))?;

    // 2. The charge, with no transaction open. What a later attempt may do about a call without a response depends on what
    // the processor can do.
    let request = ChargeRequest::new(&ride.payment, &ride_id);
    let is_first = guarded.attempt == 1;
    let processor = &app.processor.traced(trace.map(|Extension(trace)| trace));
    let call = async |key: DownstreamKey| match processor.charge(&key.into_string(), &request, is_first).await
    {
        ChargeOutcome::Ended(charge) => Ok(charge),
        ChargeOutcome::NotMade { why, .. } => Err(OutsideCallError::NotMade(why)),
        ChargeOutcome::Refused { why } | ChargeOutcome::Uncertain { why } => {
            Err(OutsideCallError::Uncertain(why))
        }
    };
    let verify = async |key: DownstreamKey| match processor.find(&key.into_string()).await {
        Ok(Some(charge)) => CallVerification::Made(charge),
        Ok(None) => CallVerification::NotMade,
        Err(_) => CallVerification::Unsure,
    };
    let charged: Result<Charge, PhaseError<String>> = match app.in_doubt {
        InDoubt::Repeat => held.outside("charge_created", Care::Repeatable, call).await,
        InDoubt::Verify { settle } => held.outside_verified("charge_created", settle, verify, call).await,
        InDoubt::Wait => held.outside("charge_created", Care::Once, call).await,
    };
    let charge = charged.map_err(|error| stopped(&error))?;

    // 3. The result, in one transaction.
    let (id, charge) = (ride_id.as_str(), &charge);
    let name = if charge.succeeded { "receipt" } else { "ride_failed" };
    let receipt_id: Option<String> = held
        .phase(name, &app.database, async |mut tx| {
            let receipt_id = charge.succeeded.then(|| format!("rcpt_{}", Uuid::now_v7().simple()));
            tx.run(
                "update ride set status = $2, charge_id = $3, receipt_id = $4
                      where id = $1 and status = 'pending'",
                &[
                    id.into(),
                    charge.status().into(),
                    SqlValue::Text(charge.charge_id.as_deref()),
                    SqlValue::Text(receipt_id.as_deref()),
                ],
            )
            .await?;
            Ok::<_, TxError>(receipt_id)
        })
        .await
        .map_err(|error| stopped(&error))?;

    // ibid stores the response, then sends it. If that fails, the next attempt gets here without doing anything twice.
    Ok(response(&ride_id, receipt_id))
}

/// Writes a new ride and returns its id.
async fn insert_ride<T: Statements + ?Sized>(
    tx: &mut T,
    account: &str,
    ride: &NewRide,
    record_id: RecordId,
) -> Result<String, TxError> {
    let ride_id = format!("ride_{}", Uuid::now_v7().simple());
    tx.run(
        "insert into ride (id, account, customer_id, amount_cents, currency, origin, destination, record_id)
         values ($1, $2, $3, $4, $5, $6, $7, $8)",
        &[
            ride_id.as_str().into(),
            account.into(),
            ride.payment.customer_id.as_str().into(),
            SqlValue::Integer(ride.payment.amount_cents),
            ride.payment.currency.as_str().into(),
            ride.origin.as_str().into(),
            ride.destination.as_str().into(),
            SqlValue::Bytes(record_id.as_bytes()),
        ],
    )
    .await?;
    Ok(ride_id)
}

/// The response to a ride that was paid, or whose card was declined.
fn response(ride_id: &str, receipt_id: Option<String>) -> Response {
    let (status, body) = match receipt_id {
        Some(receipt_id) => (
            StatusCode::CREATED,
            json!({ "rideId": ride_id, "status": "succeeded", "receiptId": receipt_id }),
        ),
        None => (
            StatusCode::PAYMENT_REQUIRED,
            json!({ "rideId": ride_id, "status": "failed", "detail": "the card was declined" }),
        ),
    };
    (status, [(LOCATION, format!("/rides/{ride_id}"))], Json(body)).into_response()
}

/// Answers 503, which leaves the key free: the client's retry continues after the last committed phase.
fn stopped<E: std::fmt::Debug>(error: &PhaseError<E>) -> Problem {
    tracing::error!(?error, "a ride stopped between two phases");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "try again later")
}

type RideRow = (String, String, String, String, i64, String, String, Option<String>, Option<String>, i64);

/// `GET /rides/{id}`, for the account that booked it.
pub(crate) async fn show(
    State(db): State<Db>,
    account: Account,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    // PostgreSQL refuses a NUL.
    let id = Some(id).filter(|id| !id.contains('\0')).ok_or_else(Problem::not_found)?;
    let row: Option<RideRow> = on_pool!(&db, pool => sqlx::query_as(
        "select id, customer_id, origin, destination, amount_cents, currency, status, charge_id, receipt_id, created_at
           from ride where id = $1 and account = $2",
    ).bind(id).bind(account.0).fetch_optional(pool).await)?;
    let (id, customer, origin, destination, amount, currency, status, charge, receipt, created_at) =
        row.ok_or_else(Problem::not_found)?;
    Ok(Json(json!({
        "rideId": id, "customerId": customer, "origin": origin, "destination": destination, "amountCents": amount,
        "currency": currency, "status": status, "chargeId": charge, "receiptId": receipt,
        "createdAt": rfc3339(created_at),
    })))
}
