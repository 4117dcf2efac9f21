-- How many rows of the reaper's index would become tombstones at ?1, and how many would go.
select count(*) filter (where r.purge_at > ?1), count(*) filter (where r.purge_at <= ?1)
from ibid_record r indexed by ibid_record_reap
where r.reap_at is not null and r.reap_at <= ?1
  and r.flags & 1 = 0
  and not exists (
    select 1 from ibid_effect_call c
    where c.record = r.id and (select e.done_at is null from ibid_effect e where e.seq = c.seq)
  )
