-- ride_insert.sql: a ride that is still to be charged.
insert into ride (id, account, customer_id, origin, destination, amount_cents, currency, record_id)
values ($1, $2, $3, $4, $5, $6, $7, $8)
