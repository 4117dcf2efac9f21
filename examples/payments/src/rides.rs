//! `POST /rides`: three phases, one of them the call to the processor. Use phases if the response needs the result of a
//! call; otherwise prefer one transaction and the outbox, as in [`crate::payments`].
//!
//! A committed phase does not run again, whether the ride is resumed by the client's retry or by the sweeper of any node.
//!
//! A ride that the sweeper resumes has no credentials. So the handler takes the account from ibid's tenant, which is stored
//! with the record.

use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use http::StatusCode;
use http::header::LOCATION;
use ibid::RecordId;
use ibid::axum::{GuardedRequest, HeldAttempt};
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

/// Books a ride, charges it and issues the receipt.
pub(crate) async fn create<D: Backend>(
    State(app): State<App<D>>,
    guarded: GuardedRequest,
    trace: Option<Extension<TraceContext>>,
    mut held: HeldAttempt,
    Valid(ride): Valid<NewRide>,
) -> Result<Response, Problem> {
    let (record_id, account, ride) = (held.record_id(), guarded.tenant.as_str(), &ride);

    // 1. Insert the ride, in one transaction. Its id is the stored result of the phase, so later attempts get the same id.
    let ride_id: String = held
        .phase("ride_created", &app.database, async |mut tx| {
            insert_ride(&mut **tx, account, ride, record_id).await
        })
        .await
        .map_err(|error| phase_failure(&error))?;

    // 2. Charge, with no transaction open: a call may take 20 s and would hold row locks and a connection. If it gets no
    // response, the processor's abilities decide what a later attempt may do (`InDoubt`).
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
    let charge = charged.map_err(|error| phase_failure(&error))?;

    // 3. Write the result, in one transaction. The name of the phase says which result it is.
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
        .map_err(|error| phase_failure(&error))?;

    // ibid stores the response before it sends it. If storing fails, the next attempt replays the three phases from their
    // stored results and gets to this line without doing anything twice.
    Ok(response(&ride_id, receipt_id))
}

/// Inserts a new ride and returns its id.
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
            SqlValue::Id(Uuid::from_bytes(*record_id.as_bytes())),
        ],
    )
    .await?;
    Ok(ride_id)
}

/// Builds the response: 201 for a paid ride, 402 if the card was declined.
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

/// Logs why a phase failed and returns 503. The route's policy lets the client retry, and the retry continues after the
/// last committed phase.
///
/// One exception: with [`InDoubt::Wait`], ibid makes a record with an in-doubt charge `unknown`, and no retry runs it.
fn phase_failure<E: std::fmt::Debug>(error: &PhaseError<E>) -> Problem {
    tracing::error!(?error, "ride interrupted; its committed phases are kept");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "try again later")
}

type RideRow = (String, String, String, String, i64, String, String, Option<String>, Option<String>, i64);

/// `GET /rides/{id}`: a ride, visible only to the account that booked it.
pub(crate) async fn show(
    State(db): State<Db>,
    Extension(account): Extension<Account>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    // PostgreSQL refuses a NUL in a parameter, and no id contains one.
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
