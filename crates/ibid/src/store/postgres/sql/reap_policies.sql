-- Takes one step of the reaper over policies behind the number $1: of the next $2 it deletes those that no record can name any
-- more, and their position in the lease scan. Returns how many went, the last number, and how many were looked at.
--
-- Each write of a record moves seen_at of its policy, at most once an hour. So all records under it have expired, and the
-- reaper has visited them, once keep_us and a day have passed since then. Those that stay nevertheless (dead letters, open
-- effects, records that run or wait) are in the next hour of the reaper's order, where the index finds them. A process that
-- begins to use the policy at this moment either moves seen_at first, and the row is compared again, or inserts it again.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
  where set_config('synchronous_commit', 'off', true) is not null
),
looked as materialized (
  select p.digest,
         p.seen_at + p.keep_us + 86400000000 < clock.now
           and (
             select true from ibid_record r
             where r.reap_at <= clock.now + 7200000000 and r.policy = p.digest
             limit 1
           ) is null as goes
  from clock, ibid_policy p
  where p.digest > $1::int8
  order by p.digest
  limit $2::int8
),
removed as (
  delete from ibid_policy p
  using clock
  where p.digest = any (array(select digest from looked where goes)) and p.seen_at + p.keep_us + 86400000000 < clock.now
  returning p.digest
),
forgotten as (
  delete from ibid_walk w where w.policy = any (array(select digest from removed))
)
select (select count(*) from removed), (select max(digest) from looked), (select count(*) from looked)
