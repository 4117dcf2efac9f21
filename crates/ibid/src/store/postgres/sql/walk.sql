-- Look through records under the policy $5 whose first lease has ended by now, from where that was left or from the instant
-- $1 on, at most $2 of them and at most $6 microseconds of leases' ends: those that still wait enter the order of what is due.
-- One that somebody holds is looked at again next time. Where to go on, unless now was reached; no row if somebody else is
-- at it.
--
-- No order has the ends of first leases, but the reaper's instant of such a record is $4 microseconds behind it. What has the
-- same instant for another reason does not wait, and is passed over.
--
-- What it looked through is left behind only $3 microseconds later: a begin that took so long to commit was not shown
-- before. If the clock was set back, so is the place.
--
-- It is lost as a whole or not at all, and then done again: no flush is waited for. Those who look at other policies at this
-- moment share `ibid_late` with this, and none waits for another: each takes the lines that nobody has, and adds none that is
-- there.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
  where set_config('synchronous_commit', 'off', true) is not null
),
place as materialized (
  select at from ibid_walk where policy = $5::int8 for update skip locked
),
span as materialized (
  select s.since, least(clock.now, s.since + $6::int8) as until, clock.now
  from clock, place, lateral (select coalesce($1::int8, least(place.at, clock.now - $3::int8)) as since) s
),
passed as materialized (
  select p.id, p.reap_at - $4::int8 as ended, p.waits
  from span
  cross join lateral (
    select x.id, x.reap_at, x.due_at is not null and x.watch_at is null as waits
    from ibid_record x
    where x.reap_at > span.since + $4::int8 and x.reap_at <= span.until + $4::int8 and x.policy = $5::int8
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
  select p.id
  from passed p
  where p.waits and p.id not in (select id from free) and (select true from ibid_late l where l.id = p.id) is null
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
   set at = least(s.now - $3::int8, s.reached)
  from (
    select span.now, case when p.looked >= $2::int8 then p.last else span.until end as reached
    from span, (select count(*) as looked, max(ended) as last from passed) p
  ) s
 where w.policy = $5::int8
returning case when s.reached < s.now then s.reached end
