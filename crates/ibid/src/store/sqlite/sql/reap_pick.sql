-- Rows that the reaper comes for, from the instant ?2 on, oldest first, and whether they go or are only stripped. A record
-- is left alone while an effect of its own is open: its answer and its downstream keys are still needed; and while it has a
-- flag of ?4: a person must look at it.
select iif(r.bare, r.purge_at, min(coalesce(r.expires_at, r.purge_at), r.purge_at)) as at, r.row, r.purge_at <= ?1, r.id
from ibid_record r
where r.purge_at is not null
  and iif(r.bare, r.purge_at, min(coalesce(r.expires_at, r.purge_at), r.purge_at)) >= ?2
  and iif(r.bare, r.purge_at, min(coalesce(r.expires_at, r.purge_at), r.purge_at)) <= ?1
  and r.flags & ?4 = 0
  and not exists (
    select 1 from ibid_effect_call c where c.record = r.id and (select e.done_at is null from ibid_effect e where e.seq = c.seq)
  )
order by iif(r.bare, r.purge_at, min(coalesce(r.expires_at, r.purge_at), r.purge_at))
limit ?3
