-- Rows past their time, oldest first, from the place (?2, ?3) on. A record stays while an effect of its own is open:
-- its answer and its downstream keys are still needed.
select r.purge_at, r.row
from ibid_record r
where r.purge_at <= ?1 and (r.purge_at, r.row) > (?2, ?3)
  and not exists (select 1 from ibid_effect e where e.record = r.id and e.open = 1)
order by r.purge_at, r.row
limit ?4
