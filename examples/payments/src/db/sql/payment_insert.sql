-- payment_insert.sql: a payment that is still to be charged.
insert into payment (id, account, customer_id, amount_cents, currency, record_id)
values ($1, $2, $3, $4, $5, $6)
