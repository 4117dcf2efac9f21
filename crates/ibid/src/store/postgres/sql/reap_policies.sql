-- Takes one step of the reaper over policies behind the number $1: of the next $2 it deletes those that no record can name any
-- more, and their position in the lease scan. Returns how many went, the last number, and how many were looked at.
--
-- Each write of a record moves seen_at of its policy, at most once an hour, and so does the reaper where it meets a record that
-- is not finished (reap_records.sql). So once keep_us and a day have passed since then, all records under the policy are finished,
-- and those that stay nevertheless (dead letters, open effects, rows that the application refers to) could have been reaped
-- long ago: they are in the first part of the reaper's index, up to 22 hours ago. It reads that part once for all policies of the
-- step, from the index alone; if it has more than $3 entries, no policy goes. A process that begins to use a policy at this
-- moment either moves seen_at first, and the row is compared again, or inserts it again.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
  where set_config('synchronous_commit', 'off', true) is not null
),
looked as materialized (
  select p.digest, p.seen_at + p.keep_us + 86400000000 < clock.now as is_old
  from clock, ibid_policy p
  where p.digest > $1::int8
  order by p.digest
  limit $2::int8
),
overdue as materialized (
  select r.policy
  from ibid_record r
  where exists (select from looked where is_old) and r.reap_at <= (select now from clock) - 79200000000
  order by r.reap_at
  limit $3::int8
),
named as materialized (
  select distinct policy from overdue
),
removed as (
  delete from ibid_policy p
  using clock
  where p.digest = any (array(
          select l.digest from looked l
          where l.is_old and l.digest not in (select policy from named) and (select count(*) from overdue) < $3::int8
        ))
    and p.seen_at + p.keep_us + 86400000000 < clock.now
  returning p.digest
),
forgotten as (
  delete from ibid_walk w where w.policy = any (array(select digest from removed))
)
select (select count(*) from removed), (select max(digest) from looked), (select count(*) from looked)
