-- ride_show.sql: one ride, if it is the account's.
select id, customer_id, origin, destination, amount_cents, currency, status, charge_id, receipt_id, created_at
  from ride
 where id = $1 and account = $2
