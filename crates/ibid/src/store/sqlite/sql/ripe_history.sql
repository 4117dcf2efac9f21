-- How many lines of history would go that were written by ?1.
select 0, count(*)
from ibid_event e
where e.at <= ?1 and not exists (select 1 from ibid_record r where r.id = e.id)
