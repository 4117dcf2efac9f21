-- Of the $2 records whose turn came first in one state, put those into their places that were changed by older processes,
-- which know nothing of the order. A row that somebody holds waits for the next time.
with first as materialized (
  select r.id, r.state <> r.watch_state or r.due_at is distinct from r.watch_at as stale
  from ibid_record r
  where r.watch_state = $1::int8::int2
    and r.watch_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8
  order by r.watch_at
  limit $2::int8
),
free as materialized (
  select r.id
  from ibid_record r
  where r.id = any (array(select id from first where stale))
  for no key update skip locked
)
update ibid_record r
   set watch_state = case when r.due_at is not null then r.state end, watch_at = r.due_at
 where r.id = any (array(select id from free))
