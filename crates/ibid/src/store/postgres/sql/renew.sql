-- Move leases on where the version still stands, and nothing else; never wait. No instant and `ours`: somebody holds
-- the row. No instant and not ours: lost.
with w as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now, t.*
  from unnest($1::bytea[], $2::int8[], $3::int8[]) with ordinality as t (id, count, nonce, place)
),
held as materialized (
  select w.place, r.id
  from w
  cross join lateral (
    select x.id
    from ibid_record x
    where x.id = w.id and x.count = w.count and x.nonce = w.nonce and x.due_at is not null
    limit 1
    for no key update skip locked
  ) r
),
moved as (
  update ibid_record r
     set due_at = n.now + least(r.lease_us, 9223372036854775807 - n.now),
         watch_state = r.state,
         watch_at = n.now + least(r.lease_us, 9223372036854775807 - n.now)
    from (select min(now) as now from w) n
   where r.id = any (array(select id from held))
  returning r.id, r.due_at
)
select w.place, moved.due_at, r.ours is not null as ours
from w
left join held on held.place = w.place
left join moved on moved.id = held.id
left join lateral (
  select true as ours
  from ibid_record x
  where x.id = w.id and x.count = w.count and x.nonce = w.nonce and x.due_at is not null
  limit 1
) r on true
