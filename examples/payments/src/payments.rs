//! `POST /payments`: one transaction commits the payment, the outbox effect that charges it, and the response. The worker
//! ([`crate::worker`]) calls the processor afterwards.
//!
//! So the request never waits for the processor, and there is no moment at which a payment exists that no worker will
//! charge.

use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use bytes::Bytes;
use ibid::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::App;
use crate::db::on_database;
use crate::input::{NewPayment, parse};
use crate::problem::Problem;
use crate::processor::ChargeRequest;
use crate::worker::CHARGE;

/// Creates a payment and enqueues its charge.
///
/// ibid has reserved the key before the handler runs. Every retry gets the response that is committed here. An error becomes
/// a 503, for which the route's policy releases the key, so the client may send the same request again.
pub(crate) async fn create(
    State(App { db, charge_rules, .. }): State<App>,
    guarded: GuardedRequest,
    mut held: HeldAttempt,
    body: Bytes,
) -> Result<TxResponse, Problem> {
    let payment: NewPayment = parse(&body)?;
    let id = format!("pay_{}", Uuid::now_v7().simple());
    let charge = ChargeRequest { reference: id.clone(), payment: payment.clone() };
    // Commits everything or nothing, and runs again if another transaction was in the way (40001, 40P01, busy).
    Ok(on_database!(&db, |database| {
        held.transact(database, async |mut tx| {
            let record_id = Uuid::from_bytes(*tx.record_id().as_bytes());
            sqlx::query(db.sql(
                "insert into payment (id, account, customer_id, amount_cents, currency, created_at, record_id)
                 values ($1, $2, $3, $4, $5, $6, $7)",
            ))
            .bind(&id)
            .bind(guarded.tenant.as_str())
            .bind(&payment.customer_id)
            .bind(payment.amount_cents)
            .bind(&payment.currency)
            .bind(jiff::Timestamp::now().as_millisecond())
            .bind(record_id)
            .execute(tx.conn())
            .await?;
            tx.enqueue(NewEffect::json(CHARGE, &charge)?.rules(charge_rules)).await?;
            let body = json!({ "paymentId": id, "status": "pending" });
            Ok(Response::json(201, &body).with_header("location", format!("/payments/{id}")))
        })
        .await?
    }))
}

/// `GET /payments/{id}`: a payment, visible only to the account that made it.
pub(crate) async fn show(
    State(App { db, .. }): State<App>,
    Extension(account): Extension<Tenant>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    let sql = "select id, customer_id, amount_cents, currency, status, charge_id, created_at
                 from payment where id = $1 and account = $2";
    let row: Option<PaymentRow> = on_database!(&db, |database| {
        sqlx::query_as(db.sql(sql)).bind(id).bind(account.as_str()).fetch_optional(&database.0).await?
    });
    row.map(payment_json).map(Json).ok_or_else(Problem::not_found)
}

/// Query parameters of [`list`].
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListQuery {
    customer_id: String,
}

/// `GET /payments?customerId=…`: the customer's latest payments, newest first.
pub(crate) async fn list(
    State(App { db, .. }): State<App>,
    Extension(account): Extension<Tenant>,
    Query(ListQuery { customer_id }): Query<ListQuery>,
) -> Result<Json<Value>, Problem> {
    // Ids are UUIDv7 and therefore in the order of time.
    let sql = "select id, customer_id, amount_cents, currency, status, charge_id, created_at
                 from payment where account = $1 and customer_id = $2 order by id desc limit $3";
    let rows: Vec<PaymentRow> = on_database!(&db, |database| {
        let query = sqlx::query_as(db.sql(sql)).bind(account.as_str()).bind(customer_id).bind(LIST_MAX);
        query.fetch_all(&database.0).await?
    });
    Ok(Json(json!({ "payments": rows.into_iter().map(payment_json).collect::<Vec<_>>() })))
}

type PaymentRow = (String, String, i64, String, String, Option<String>, i64);

fn payment_json((id, customer, amount, currency, status, charge, created_at): PaymentRow) -> Value {
    json!({
        "paymentId": id, "customerId": customer, "amountCents": amount, "currency": currency, "status": status,
        "chargeId": charge, "createdAt": rfc3339(created_at),
    })
}

/// Formats milliseconds since 1970 as RFC 3339, for example `2026-01-31T12:00:00Z`.
pub(crate) fn rfc3339(ms: i64) -> Option<String> {
    jiff::Timestamp::from_millisecond(ms).ok().map(|instant| instant.to_string())
}

/// Largest number of payments in a list: a few screens.
const LIST_MAX: i64 = 200;
