//! The pages that only read. What is another account's is not there.

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::account::Account;
use crate::db::Db;
use crate::db::payments::{Page, Payment, is_payment_id};
use crate::db::rides::{Ride, is_ride_id};
use crate::problem::{FieldError, Problem};

/// `GET /payments/{id}`.
pub(super) async fn payment(
    State(db): State<Db>,
    account: Account,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Problem> {
    let Path(id) = id.map_err(|_| Problem::not_found())?;
    if !is_payment_id(&id) {
        return Err(Problem::not_found());
    }
    let found = db.payment(&account, &id).await?;
    found.map(|payment| Json(payment_json(&payment))).ok_or_else(Problem::not_found)
}

/// `GET /rides/{id}`.
pub(super) async fn ride(
    State(db): State<Db>,
    account: Account,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Problem> {
    let Path(id) = id.map_err(|_| Problem::not_found())?;
    if !is_ride_id(&id) {
        return Err(Problem::not_found());
    }
    let found = db.ride(&account, &id).await?;
    found.map(|ride| Json(ride_json(&ride))).ok_or_else(Problem::not_found)
}

/// What to list, as it came.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListQuery {
    customer_id: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

/// `GET /payments?customerId=…&limit=…&cursor=…`, newest first.
pub(super) async fn payments(
    State(db): State<Db>,
    account: Account,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Query(query) = query.map_err(|error| Problem::malformed(error.body_text()))?;
    let page = query.page().map_err(Problem::invalid)?;
    // One more than is shown tells whether there are more.
    let mut found = db.payments(&account, &Page { limit: page.limit + 1, ..page.clone() }).await?;
    let shown = page.limit as usize;
    let more = found.len() > shown;
    found.truncate(shown);
    let cursor = found.last().filter(|_| more).map(|last| last.id.clone());
    let list: Vec<Value> = found.iter().map(payment_json).collect();
    Ok(Json(json!({ "payments": list, "nextCursor": cursor })))
}

impl ListQuery {
    fn page(&self) -> Result<Page<'_>, Vec<FieldError>> {
        let mut errors = Vec::new();
        let customer_id = self.customer_id.as_deref().unwrap_or_default();
        // No payment has such a customer, and PostgreSQL would not even look for a NUL.
        if customer_id.is_empty() || customer_id.chars().any(char::is_control) {
            errors.push(FieldError::new("customerId", "must say whose payments to list"));
        }
        let limit = self.limit.as_deref().map_or(Ok(LIMIT), str::parse).unwrap_or_default();
        if !(1..=LIMIT_MAX).contains(&limit) {
            errors.push(FieldError::new("limit", format!("must be a whole number from 1 to {LIMIT_MAX}")));
        }
        let before = self.cursor.as_deref();
        if before.is_some_and(|cursor| !is_payment_id(cursor)) {
            errors.push(FieldError::new("cursor", "must be the `nextCursor` of the page before"));
        }
        if errors.is_empty() { Ok(Page { customer_id, before, limit }) } else { Err(errors) }
    }
}

fn payment_json(payment: &Payment) -> Value {
    json!({
        "paymentId": payment.id,
        "status": payment.status,
        "customerId": payment.customer_id,
        "amountCents": payment.amount_cents,
        "currency": payment.currency,
        "chargeId": payment.charge_id,
        "createdAt": instant(payment.created_at),
    })
}

fn ride_json(ride: &Ride) -> Value {
    json!({
        "rideId": ride.id,
        "status": ride.status,
        "customerId": ride.customer_id,
        "origin": ride.origin,
        "destination": ride.destination,
        "amountCents": ride.amount_cents,
        "currency": ride.currency,
        "chargeId": ride.charge_id,
        "receiptId": ride.receipt_id,
        "createdAt": instant(ride.created_at),
    })
}

/// RFC 3339, in UTC.
fn instant(ms: i64) -> Option<String> {
    Timestamp::from_millisecond(ms).ok().map(|instant| instant.to_string())
}

/// A page of a list on a screen.
const LIMIT: u32 = 50;

/// Some tens of kilobytes: whoever wants all asks for pages.
const LIMIT_MAX: u32 = 200;
