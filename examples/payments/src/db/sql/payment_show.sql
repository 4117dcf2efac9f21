-- payment_show.sql: one payment, if it is the account's.
select id, customer_id, amount_cents, currency, status, charge_id, created_at
  from payment
 where id = $1 and account = $2
