-- How many effects would go that ended by ?1.
select 0, count(*)
from ibid_effect e
where e.open = 0 and coalesce(e.done_at, e.created_at) <= ?1
  and not exists (select 1 from ibid_record r where r.id = e.record and r.birth = e.birth)
