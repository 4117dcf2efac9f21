-- Look through records whose first lease has ended by now, from where that was left or from the instant $1 on, $2 at a
-- time: those that still wait enter the order of what is due. One that somebody holds is looked at again next time. How
-- many there were, and the last one's instant; no row if somebody else is at it.
--
-- What it looked through is left behind only $3 microseconds later: a begin that took so long to commit was not shown
-- before. If the clock was set back, so is the place.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
),
place as materialized (
  select at from ibid_walk for update skip locked
),
passed as materialized (
  select p.id, p.first_due, p.waits
  from place
  cross join lateral (
    select x.id, x.first_due, x.due_at is not null and x.watch_at is null as waits
    from ibid_record x
    where x.first_due > coalesce($1::int8, least(place.at, (select now from clock) - $3::int8))
      and x.first_due <= (select now from clock)
    order by x.first_due
    fetch first ($2::int8) rows with ties
  ) p
),
free as materialized (
  select w.id
  from (
    select id from passed where waits
    union
    select l.id from ibid_late l, place
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
  where (select true from place)
    and (
      l.id = any (array(select id from free))
      or (
        select true from ibid_record x where x.id = l.id and x.due_at is not null and x.watch_at is null
      ) is null
    )
)
update ibid_walk w
   set at = least((select now from clock) - $3::int8, case when s.looked >= $2::int8 then s.last else (select now from clock) end)
  from (select count(*) as looked, max(first_due) as last from passed) s
 where (select true from place)
returning s.looked, s.last
