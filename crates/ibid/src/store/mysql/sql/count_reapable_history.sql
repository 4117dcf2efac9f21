-- Counts the lines of history that would go now.
select 0, count(*)
from ibid_event e
where e.at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) - ?1 and not exists (select 1 from ibid_record r where r.id = e.id)
