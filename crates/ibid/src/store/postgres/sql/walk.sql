-- Look through records under the policy $5 whose first lease has ended by now, from where that was left or from the instant
-- $1 on, $2 at a time: those that still wait enter the order of what is due. One that somebody holds is looked at again next
-- time. How many there were, and the last one's instant; no row if somebody else is at it.
--
-- No order has the ends of first leases, but the reaper's instant of such a record is $4 microseconds behind it. What has the
-- same instant for another reason does not wait, and is passed over.
--
-- What it looked through is left behind only $3 microseconds later: a begin that took so long to commit was not shown
-- before. If the clock was set back, so is the place.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
),
place as materialized (
  select at from ibid_walk where policy = $5::int8 for update skip locked
),
passed as materialized (
  select p.id, p.reap_at - $4::int8 as ended, p.waits
  from place
  cross join lateral (
    select x.id, x.reap_at, x.due_at is not null and x.watch_at is null as waits
    from ibid_record x
    where x.reap_at > coalesce($1::int8, least(place.at, (select now from clock) - $3::int8)) + $4::int8
      and x.reap_at <= (select now from clock) + $4::int8
      and x.policy = $5::int8
    order by x.reap_at
    fetch first ($2::int8) rows with ties
  ) p
),
lates as materialized (
  select l.id from ibid_late l where (select true from place) for update skip locked
),
free as materialized (
  select w.id
  from (
    select id from passed where waits
    union
    select id from lates
    order by id
  ) w
  cross join lateral (
    select true
    from ibid_record x
    where x.id = w.id and x.due_at is not null and x.watch_at is null
    limit 1
    for no key update skip locked
  ) r
),
watched as (
  update ibid_record r set watch_state = r.state, watch_at = r.due_at
  where r.id = any (array(select id from free))
),
late as (
  insert into ibid_late (id)
  select id from passed where waits and id not in (select id from free)
  on conflict (id) do nothing
),
seen as (
  delete from ibid_late l
  where l.id = any (array(select id from lates))
    and (
      l.id = any (array(select id from free))
      or (
        select true from ibid_record x where x.id = l.id and x.due_at is not null and x.watch_at is null
      ) is null
    )
)
update ibid_walk w
   set at = least((select now from clock) - $3::int8, case when s.looked >= $2::int8 then s.last else (select now from clock) end)
  from (select count(*) as looked, max(ended) as last from passed) s
 where w.policy = $5::int8 and (select true from place)
returning s.looked, s.last
