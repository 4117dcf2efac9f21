-- Renews leases of records that are still at their version, by the lease of their policy, and changes nothing else. It never
-- waits. Returns for each the new end of the lease; null and `ours`: another transaction has locked the row; null and not
-- ours: the lease is lost.
with w as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now, t.*
  from unnest($1::uuid[], $2::int4[], $3::int8[]) with ordinality as t (id, count, nonce, nth)
),
locked as materialized (
  select w.nth, r.id
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
     set due_at = n.now + (select p.lease_us from ibid_policy p where p.digest = r.policy),
         watch_state = r.state,
         watch_at = n.now + (select p.lease_us from ibid_policy p where p.digest = r.policy)
    from (select min(now) as now from w) n
   where r.id = any (array(select id from locked)) and (select true from ibid_policy p where p.digest = r.policy)
  returning r.id, r.due_at
)
select w.nth, moved.due_at, r.ours is not null as ours
from w
left join locked on locked.nth = w.nth
left join moved on moved.id = locked.id
left join lateral (
  select true as ours
  from ibid_record x
  where x.id = w.id and x.count = w.count and x.nonce = w.nonce and x.due_at is not null
  limit 1
) r on true
