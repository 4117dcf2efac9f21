-- Move leases on where the version still stands, and nothing else; never wait. No instant and `ours`: somebody holds
-- the row. No instant and not ours: lost.
with w as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now, t.*
  from unnest($1::bytea[], $2::int8[], $3::int8[]) with ordinality as t (id, count, nonce, place)
),
held as materialized (
  select r.id, w.now
  from w join ibid_record r on r.id = w.id and r.count = w.count and r.nonce = w.nonce
  where r.due_at is not null
  order by r.id
  for no key update of r skip locked
),
moved as (
  update ibid_record r
     set due_at = held.now + least(r.lease_us, 9223372036854775807 - held.now)
    from held
   where r.id = held.id
  returning r.id, r.count, r.nonce, r.due_at
)
select w.place, moved.due_at, r.id is not null as ours
from w
left join moved on moved.id = w.id and moved.count = w.count and moved.nonce = w.nonce
left join ibid_record r on r.id = w.id and r.count = w.count and r.nonce = w.nonce and r.due_at is not null
