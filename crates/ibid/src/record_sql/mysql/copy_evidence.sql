-- Reads all evidence behind the number ?1, at most ?2 pieces, also used and dismissed.
select e.seq, e.source, e.event, e.record, e.owner, e.as_of, e.open, e.found, e.purge_at
from ibid_evidence e
where e.seq > ?1
order by e.seq
limit ?2
