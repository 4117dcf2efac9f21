-- Counts records in the state $1 (in progress) that are in their first lease. They are in no separate order, but their
-- instant of the reaper tells how far they are (lease_scan.sql): so it reads the records begun since the lease scan, for each
-- distance at most $2 of them, the newest first. Returns also how many it read under the distance that has most. Records that
-- the scan has put aside are among them. $3 is the grace of the scan and another hour, as in lease_scan_policies.sql.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
),
distance as materialized (
  select p.ahead_us, array_agg(p.digest) as policies, min(coalesce(w.at, p.put_at)) as since, max(p.lease_us) as lease_us
  from ibid_policy p
  left join ibid_walk w on w.policy = p.digest
  where coalesce(w.at, p.put_at) < p.seen_at + p.lease_us + 3600000000 + $3::int8
  group by p.ahead_us
),
begun as materialized (
  select d.ahead_us, x.id, x.state = $1::int8::int2 and x.watch_at is null and x.policy = any (d.policies) as runs
  from clock, distance d
  cross join lateral (
    select r.id, r.state, r.watch_at, r.policy
    from ibid_record r
    where r.reap_at > d.since + d.ahead_us and r.reap_at <= clock.now + d.ahead_us + d.lease_us
    order by r.reap_at desc
    limit $2::int8
  ) x
),
late as materialized (
  select l.id
  from ibid_late l
  where (select x.state = $1::int8::int2 and x.watch_at is null from ibid_record x where x.id = l.id)
)
select (select count(*) from (select id from begun where runs union select id from late) x),
       (select coalesce(max(n.looked), 0) from (select count(*) as looked from begun group by ahead_us) n)
