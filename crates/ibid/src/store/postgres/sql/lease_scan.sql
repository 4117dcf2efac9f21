-- Scans records under the policy $5 whose first lease has ended by now: from the stored position or from the instant $1 on, at
-- most $2 of them, and at most $6 microseconds of ends of leases. Those that are still in progress enter the order of due
-- records. Returns where to continue; null: it has reached now; no row: another process scans this policy.
--
-- The ends of first leases have no index, but the reaper's instant of such a record is $4 microseconds later. Another record
-- that has such an instant by chance is not in its first lease, and is skipped.
--
-- The stored position stays $3 microseconds behind, because a begin that took so long to commit was not visible before. If the
-- clock was set back, the position follows.
--
-- A scan is lost as a whole or not at all, and then repeated, so it does not wait for the disk. A record whose row is locked is
-- noted in ibid_late and looked at by the next scan. Scans of other policies share ibid_late; each takes only lines that no
-- other has locked.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
  where set_config('synchronous_commit', 'off', true) is not null
),
stored as materialized (
  select at from ibid_walk where policy = $5::int8 for update skip locked
),
span as materialized (
  select s.since, least(clock.now, s.since + $6::int8) as until, clock.now
  from clock, stored, lateral (select coalesce($1::int8, least(stored.at, clock.now - $3::int8)) as since) s
),
scanned as materialized (
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
  select l.id from ibid_late l where (select true from stored) for update skip locked
),
free as materialized (
  select w.id
  from (
    select id from scanned where waits
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
entered as (
  update ibid_record r set watch_state = r.state, watch_at = r.due_at
  where r.id = any (array(select id from free))
),
late as (
  insert into ibid_late (id)
  select p.id
  from scanned p
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
    from span, (select count(*) as looked, max(ended) as last from scanned) p
  ) s
 where w.policy = $5::int8
returning case when s.reached < s.now then s.reached end
