-- Scans records under the policies $5 whose first lease has ended by now: from the stored positions or from the instant $1 on, at
-- most $2 instants and policies, and at most $6 microseconds of ends of leases. Those that are still in progress enter the order of
-- due records. Returns each policy that was scanned and where to continue (null: it has reached now). A policy that another
-- process scans at this moment is left to it.
--
-- The ends of first leases have no index, but under all of these policies the reaper's instant of such a record is $4 microseconds
-- later. Another record that has such an instant by chance is not in its first lease, and is skipped. The scan reads the instants
-- and policies from the index alone, so that it does not fetch the rows of other policies, and then the rows of each pair. (As a
-- condition on the index, a set of policies would be one scan for each.)
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
  select policy, at from ibid_walk where policy = any ($5::int8[]) order by policy for update skip locked
),
span as materialized (
  select s.since, least(clock.now, s.since + $6::int8) as until, clock.now
  from clock,
       (select min(at) as at from stored) p,
       lateral (select coalesce($1::int8, least(p.at, clock.now - $3::int8)) as since) s
  where p.at is not null
),
paired as materialized (
  select p.reap_at, p.policy
  from span
  cross join lateral (
    select y.reap_at, y.policy
    from ibid_record y
    where y.reap_at > span.since + $4::int8 and y.reap_at <= span.until + $4::int8
      and (y.policy = any (array(select policy from stored))) is true
    group by y.reap_at, y.policy
    order by y.reap_at
    fetch first ($2::int8) rows with ties
  ) p
),
waiting as materialized (
  select r.id
  from paired p
  cross join lateral (
    select x.id
    from ibid_record x
    where x.reap_at = p.reap_at and x.policy = p.policy and x.due_at is not null and x.watch_at is null
    offset 0
  ) r
),
lates as materialized (
  select l.id from ibid_late l where exists (select from stored) for update skip locked
),
free as materialized (
  select w.id
  from (
    select id from waiting
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
  select w.id
  from waiting w
  where w.id not in (select id from free) and (select true from ibid_late l where l.id = w.id) is null
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
   set at = least(s.now - $3::int8, greatest(w.at, s.reached))
  from (
    select span.now, case when p.pairs >= $2::int8 then p.last - $4::int8 else span.until end as reached
    from span, (select count(*) as pairs, max(reap_at) as last from paired) p
  ) s
 where w.policy = any (array(select policy from stored))
returning w.policy, case when s.reached < s.now then s.reached end
