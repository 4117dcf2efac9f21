-- Enqueue an effect in the caller's transaction. Those of one aggregate get their places in the order of their commits:
-- the lock is held until then. No row back means that the record has one of that name.
with t as materialized (select coalesce($2::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now),
     l as materialized (select case when $12::text is not null
                                    then pg_advisory_xact_lock(hashtextextended($12::text, 7305)) is null end as held)
insert into ibid_effect (
  record, birth, name, count, nonce, kind, state, open, tries, due_at, lease_us, created_at, aggregate,
  downstream_key, rules, owes, tenant, trace, payload
)
select $1, $3, $4, 1, $5, $6, $7::int8::int2, $8, 0, t.now + $9, $10, t.now, $12::text,
  $11, $13, $14, $15, $16, $17
from t, l
on conflict (record, birth, name) do nothing
returning seq
