-- Finds up to $5 tenants after $4 with effects of the kind $3 in the state $2, and whether one is due.
--
-- Each tenant costs one step into the index of tenants, to its oldest effect, however many it has. Rows are compared as in
-- that index: with equalities the server may walk another one and filter.
with recursive t as materialized (
       select coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now
     ),
     walk (tenant, due_at, number) as (
       select f.tenant, f.due_at, 1
       from (
         select x.kind, x.state, x.tenant, x.due_at
         from ibid_effect x
         where (x.kind, x.state, x.tenant) > ($3::text, $2::int8::int2, $4::text) and x.due_at is not null and not x.blocked
         order by x.kind, x.state, x.tenant, x.due_at
         limit 1
       ) f
       where f.kind = $3::text and f.state = $2::int8::int2
       union all
       select n.tenant, n.due_at, w.number + 1
       from walk w
       cross join lateral (
         select x.kind, x.state, x.tenant, x.due_at
         from ibid_effect x
         where (x.kind, x.state, x.tenant) > ($3::text, $2::int8::int2, w.tenant) and x.due_at is not null and not x.blocked
         order by x.kind, x.state, x.tenant, x.due_at
         limit 1
       ) n
       where w.number < $5::int8 and n.kind = $3::text and n.state = $2::int8::int2
     )
select w.tenant, case when w.due_at <= t.now then 1::int8 else 0::int8 end
from walk w, t
order by w.number
