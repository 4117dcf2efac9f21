//! `POST /payments`: one transaction commits the payment, the outbox effect that charges it, and the response. The worker
//! ([`crate::worker`]) calls the processor afterwards.
//!
//! So the request never waits for the processor, and there is no moment at which a payment exists that no worker will
//! charge.

use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use ibid::Response as StoredResponse;
use ibid::axum::{GuardedRequest, HeldAttempt};
use ibid::transaction::TxResponse;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::account::Account;
use crate::api::App;
use crate::db::{Backend, Db, SqlValue, Statements as _, on_pool};
use crate::input::{NewPayment, Valid};
use crate::problem::Problem;
use crate::processor::ChargeRequest;
use crate::worker::ChargePayment;

/// Creates a payment and enqueues its charge.
///
/// ibid has reserved the key before the handler runs. Every retry gets the response that is committed here. An error becomes
/// a 503, for which the route's policy releases the key, so the client may send the same request again.
pub(crate) async fn create<D: Backend>(
    State(app): State<App<D>>,
    guarded: GuardedRequest,
    mut held: HeldAttempt,
    Valid(payment): Valid<NewPayment>,
) -> Result<TxResponse, Problem> {
    let payment_id = format!("pay_{}", Uuid::now_v7().simple());
    // Commits everything or nothing, and runs again if another transaction was in the way (40001, 40P01, busy).
    let created = held.transact(&app.database, async |mut tx| {
        let record_id = tx.record_id();
        tx.run(
            "insert into payment (id, account, customer_id, amount_cents, currency, record_id)
             values ($1, $2, $3, $4, $5, $6)",
            &[
                payment_id.as_str().into(),
                guarded.tenant.as_str().into(),
                payment.customer_id.as_str().into(),
                SqlValue::Integer(payment.amount_cents),
                payment.currency.as_str().into(),
                SqlValue::Id(Uuid::from_bytes(*record_id.as_bytes())),
            ],
        )
        .await?;
        let request = ChargeRequest::new(&payment, &payment_id);
        let charge = ChargePayment { payment_id: payment_id.clone(), request };
        tx.enqueue(charge.effect(app.lease, app.in_doubt)).await?;
        let body = json!({ "paymentId": payment_id, "status": "pending" });
        Ok(StoredResponse::json(201, &body).with_header("location", format!("/payments/{payment_id}")))
    });
    Ok(created.await?)
}

/// `GET /payments/{id}`: a payment, visible only to the account that made it.
pub(crate) async fn show(
    State(db): State<Db>,
    Extension(account): Extension<Account>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Problem> {
    // PostgreSQL refuses a NUL in a parameter, and no id contains one.
    let id = Some(id).filter(|id| !id.contains('\0')).ok_or_else(Problem::not_found)?;
    let row: Option<PaymentRow> = on_pool!(&db, pool => sqlx::query_as(
        "select id, customer_id, amount_cents, currency, status, charge_id, created_at
           from payment where id = $1 and account = $2",
    ).bind(id).bind(account.0).fetch_optional(pool).await)?;
    row.map(|row| Json(payment_json(row))).ok_or_else(Problem::not_found)
}

/// Query parameters of [`list`].
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListQuery {
    customer_id: String,
}

/// `GET /payments?customerId=…`: the customer's latest payments, newest first.
pub(crate) async fn list(
    State(db): State<Db>,
    Extension(account): Extension<Account>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, Problem> {
    let customer = Some(query.customer_id).filter(|id| !id.contains('\0')).ok_or_else(Problem::not_found)?;
    // Ids are UUIDv7 and therefore in the order of time.
    let rows: Vec<PaymentRow> = on_pool!(&db, pool => sqlx::query_as(
        "select id, customer_id, amount_cents, currency, status, charge_id, created_at
           from payment where account = $1 and customer_id = $2 order by id desc limit $3",
    ).bind(account.0).bind(customer).bind(LIST_MAX).fetch_all(pool).await)?;
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
