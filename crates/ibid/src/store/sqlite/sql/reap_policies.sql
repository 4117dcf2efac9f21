-- Delete policies that no record can name any more at ?1, at most ?2: every record that was written under one is past its purge, and
-- no open record and no record that stays past its time names it. Not while a range waits for the reaper.
delete from ibid_policy
where id in (
  select p.id from ibid_policy p
  where p.seen_at < ?1 - p.life_us
    and not exists (select 1 from ibid_reap_range where at <= ?1)
    and not exists (select 1 from ibid_record r indexed by ibid_record_open where r.watch_at is not null and r.policy = p.id)
    and not exists (select 1 from ibid_record r indexed by ibid_record_reap
                    where r.reap_at is not null and r.reap_at <= ?1 and r.policy = p.id)
  order by p.id
  limit ?2
)
