-- Rows in the reaper's index by ?1, after the position (?2, ?3), oldest first, and whether they go. A record is skipped while one of
-- its effects is open, because its response and its downstream keys are still needed, and while it is a dead letter.
select r.row, r.reap_at, r.purge_at <= ?1
from ibid_record r indexed by ibid_record_reap
where r.reap_at is not null and r.reap_at <= ?1 and r.reap_at >= ?2 and (r.reap_at > ?2 or r.row > ?3)
  and r.flags & 1 = 0
  and not exists (
    select 1 from ibid_effect_call c
    where c.record = r.id and (select e.done_at is null from ibid_effect e where e.seq = c.seq)
  )
order by r.reap_at, r.row
limit ?4
