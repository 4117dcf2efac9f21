-- Picks up to $4 due effects of the kinds in $3 in the state $2, the oldest first, and locks them for a claim.
--
-- Each kind has a bounded scan, so effects of other kinds cost nothing; blocked effects are not in the index. Effects that
-- another worker is claiming or ending are skipped. A worker that falls silent with locked rows is cut off after their lease,
-- because looks would skip them as long as it holds the locks.
with t as materialized (select coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now)
select p.seq, p.tenant, p.due_at
from (select json_array_elements_text($3::text::json) as kind) k
cross join lateral (
  select x.seq, x.tenant, x.due_at, x.lease_us
  from ibid_effect x
  where x.kind = k.kind and x.state = $2::int8::int2 and not x.blocked and x.due_at <= (select t.now from t)
  order by x.due_at
  limit $4
  for no key update of x skip locked
) p
where set_config('idle_in_transaction_session_timeout',
                 least(greatest(p.lease_us / 1000, 1), 2147483647)::text, true) <> ''
order by p.due_at, p.seq
limit $4
