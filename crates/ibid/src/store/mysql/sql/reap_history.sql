-- Looks at the next ?2 lines of history after the number ?1. One that is older than ?3 and whose record is gone goes. Lines are in the
-- order of time, so behind a younger line there is no older one.
select e.seq, e.at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) - ?3 and not exists (select 1 from ibid_record r where r.id = e.id), e.at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) - ?3
from ibid_event e force index (primary)
where e.seq > ?1
order by e.seq
limit ?2
