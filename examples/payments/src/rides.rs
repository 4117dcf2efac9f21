//! `POST /rides`: three phases, one of them the call to the processor. Use phases if the response needs the result of a
//! call; otherwise prefer one transaction and the outbox, as in [`crate::payments`].
//!
//! A committed phase does not run again, whether the ride is resumed by the client's retry or by the sweeper of any node.
//!
//! A ride that the sweeper resumes has no credentials. So the handler takes the account from ibid's tenant, which is stored
//! with the record.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use http::StatusCode;
use http::header::LOCATION;
use ibid::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::App;
use crate::db::on_database;
use crate::input::{NewRide, parse};
use crate::payments::rfc3339;
use crate::problem::Problem;
use crate::processor::{Charge, ChargeError, ChargeRequest, ProcessorClient};

/// Books a ride, charges it and issues the receipt.
///
/// An error in a phase becomes a 503. The route's policy lets the client retry, and the retry continues after the last
/// committed phase. One exception: with [`Safety::Once`], ibid makes a record with an in-doubt charge `unknown`, and no retry
/// runs it.
pub(crate) async fn create(
    State(App { db, processor, charge_rules }): State<App>,
    guarded: GuardedRequest,
    trace: Option<Extension<TraceContext>>,
    mut held: HeldAttempt,
    body: Bytes,
) -> Result<Response, Problem> {
    let NewRide { payment, origin, destination } = parse(&body)?;
    let record_id = Uuid::from_bytes(*held.record_id().as_bytes());

    // 1. Insert the ride, in one transaction. Its id is the stored result of the phase, so later attempts get the same id.
    let ride_id: String = on_database!(&db, |database| {
        held.phase("ride_created", database, async |mut tx| {
            let ride_id = format!("ride_{}", Uuid::now_v7().simple());
            sqlx::query(db.sql(
                "insert into ride (id, account, customer_id, origin, destination, amount_cents, currency,
                                   created_at, record_id)
                 values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            ))
            .bind(&ride_id)
            .bind(guarded.tenant.as_str())
            .bind(&payment.customer_id)
            .bind(&origin)
            .bind(&destination)
            .bind(payment.amount_cents)
            .bind(&payment.currency)
            .bind(jiff::Timestamp::now().as_millisecond())
            .bind(record_id)
            .execute(tx.conn())
            .await?;
            Ok::<_, TxError>(ride_id)
        })
        .await?
    });

    // 2. Charge, with no transaction open: a call may take 20 s and would hold row locks and a connection.
    let request = ChargeRequest { reference: ride_id.clone(), payment };
    let processor = processor.traced(trace.map(|Extension(trace)| trace));
    let charge = charge(&mut held, &processor, &request, charge_rules).await?;

    // 3. Write the result, in one transaction. The name of the phase says which result it is.
    let is_paid = matches!(charge, Charge::Succeeded { .. });
    let phase = if is_paid { "receipt" } else { "ride_failed" };
    let receipt_id: Option<String> = on_database!(&db, |database| {
        held.phase(phase, database, async |mut tx| {
            let receipt_id = is_paid.then(|| format!("rcpt_{}", Uuid::now_v7().simple()));
            sqlx::query(db.sql(
                "update ride set status = $1, charge_id = $2, receipt_id = $3
                  where id = $4 and status = 'pending'",
            ))
            .bind(charge.status())
            .bind(charge.id())
            .bind(&receipt_id)
            .bind(&ride_id)
            .execute(tx.conn())
            .await?;
            Ok::<_, TxError>(receipt_id)
        })
        .await?
    });

    // ibid stores the response before it sends it. If storing fails, the next attempt replays the three phases from their
    // stored results and gets to this line without doing anything twice.
    Ok(response(&ride_id, receipt_id))
}

/// Makes the call to the processor. If it gets no response, the processor's abilities decide what a later attempt may do.
async fn charge(
    attempt: &mut Attempt,
    processor: &ProcessorClient,
    request: &ChargeRequest,
    rules: EffectRules,
) -> Result<Charge, PhaseError<ChargeError>> {
    let is_first = attempt.number() == 1;
    let call = async |key: DownstreamKey| {
        let charged = processor.charge(&key.into_string(), request, is_first).await;
        charged.map_err(|error| match error {
            ChargeError::NotMade { .. } => OutsideCallError::NotMade(error),
            ChargeError::Refused(_) | ChargeError::Uncertain(_) => OutsideCallError::Uncertain(error),
        })
    };
    let verify = async |key: DownstreamKey| match processor.find(&key.into_string()).await {
        Ok(Some(charge)) => CallVerification::Made(charge),
        Ok(None) => CallVerification::NotMade,
        Err(_) => CallVerification::Unsure,
    };
    let settle = Duration::from_millis(rules.settle_ms);
    match rules.safety {
        Safety::Verified => attempt.outside_verified("charge_created", settle, verify, call).await,
        Safety::Repeatable | Safety::RepeatableAndVerified => {
            attempt.outside("charge_created", Care::Repeatable, call).await
        }
        // `Safety::Once`. What a later version adds is taken for it, because that repeats nothing.
        _ => attempt.outside("charge_created", Care::Once, call).await,
    }
}

/// Builds the response: 201 for a paid ride, 402 if the card was declined.
fn response(ride_id: &str, receipt_id: Option<String>) -> Response {
    let status = if receipt_id.is_some() { StatusCode::CREATED } else { StatusCode::PAYMENT_REQUIRED };
    let body = match receipt_id {
        Some(id) => json!({ "rideId": ride_id, "status": "succeeded", "receiptId": id }),
        None => json!({ "rideId": ride_id, "status": "failed", "detail": "the card was declined" }),
    };
    (status, [(LOCATION, format!("/rides/{ride_id}"))], Json(body)).into_response()
}

type RideRow = (String, String, String, String, i64, String, String, Option<String>, Option<String>, i64);

/// `GET /rides/{id}`: a ride, visible only to the account that booked it.
pub(crate) async fn show(
    State(App { db, .. }): State<App>,
    Extension(account): Extension<Tenant>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let sql = "select id, customer_id, origin, destination, amount_cents, currency, status, charge_id,
                      receipt_id, created_at
                 from ride where id = $1 and account = $2";
    let row: Option<RideRow> = on_database!(&db, |database| {
        sqlx::query_as(db.sql(sql)).bind(id).bind(account.as_str()).fetch_optional(&database.0).await?
    });
    let (id, customer, origin, destination, amount, currency, status, charge, receipt, created_at) =
        row.ok_or_else(Problem::not_found)?;
    Ok(Json(json!({
        "rideId": id, "customerId": customer, "origin": origin, "destination": destination, "amountCents": amount,
        "currency": currency, "status": status, "chargeId": charge, "receiptId": receipt,
        "createdAt": rfc3339(created_at),
    })))
}
