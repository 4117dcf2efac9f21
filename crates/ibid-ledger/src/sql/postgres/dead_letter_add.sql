-- Add a dead letter of a ledger, once. No row back: it exists already, or an operator has discarded it.
with t as materialized (select coalesce($2::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now)
insert into ibid_effect (
  record, birth, name, count, nonce, kind, state, open, tries, lease_us, created_at,
  downstream_key, rules, owes, tenant, payload, last_error
)
select $1, $3, $4, 1, $5, $6, $7::int8::int2, true, 0, $8, t.now,
  $9, $10, false, $11, $12, $13
from t
on conflict (record, birth, name) do nothing
returning seq
