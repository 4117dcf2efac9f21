-- Picks up to $5 due effects of the tenant $4 and the kind $3 in the state $2, the oldest first, and locks them for a claim.
--
-- It reads no effect of another tenant: rows are compared as in the index of tenants. With equalities the server may walk the
-- order of all tenants and filter, and read the backlog that this statement is there to pass by. Locks are as in pick_due.sql.
with t as materialized (select coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now)
select p.seq, p.tenant, p.due_at
from (
  select x.seq, x.tenant, x.due_at, x.lease_us
  from ibid_effect x
  where (x.kind, x.state, x.tenant, x.due_at) >= ($3::text, $2::int8::int2, $4::text, -9223372036854775808)
    and (x.kind, x.state, x.tenant, x.due_at) <= ($3::text, $2::int8::int2, $4::text, (select t.now from t))
    and x.due_at is not null and not x.blocked
  order by x.kind, x.state, x.tenant, x.due_at
  limit $5
  for no key update of x skip locked
) p
where set_config('idle_in_transaction_session_timeout',
                 least(greatest(p.lease_us / 1000, 1), 2147483647)::text, true) <> ''
