-- Delete at most ?2 policies that no record can name any more at ?1. Every record that was written under one is past its purge by
-- 22 hours (life_us has a day to spare, of which an hour is for seen_at and one for the write), or open. So it reads, once for
-- all policies, the open records and the part of the reaper's index that old; with ?3 entries in either no policy goes.
-- Not while a range that old waits for the reaper.
with open as materialized (
  select r.policy from ibid_record r indexed by ibid_record_open where r.watch_at is not null limit ?3
),
overdue as materialized (
  select r.policy
  from ibid_record r indexed by ibid_record_reap
  where r.reap_at is not null and r.reap_at <= ?1 - 79200000000
  order by r.reap_at
  limit ?3
)
delete from ibid_policy
where id in (
  select p.id from ibid_policy p
  where p.seen_at < ?1 - p.life_us
    and p.id not in (select policy from open union all select policy from overdue)
    and (select count(*) from open) < ?3
    and (select count(*) from overdue) < ?3
    and not exists (select 1 from ibid_reap_range where at <= ?1 - 79200000000)
  order by p.id
  limit ?2
)
