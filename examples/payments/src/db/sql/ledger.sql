-- ledger.sql: all that we asked the processor for: payments and rides, by the reference that it was given.
select id, amount_cents, currency, status, charge_id from payment
union all
select id, amount_cents, currency, status, charge_id from ride
