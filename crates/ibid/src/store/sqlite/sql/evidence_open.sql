-- Open evidence after the number ?1, oldest first.
select e.seq, e.source, e.event, e.record, e.owner, e.as_of, e.open, e.found
from ibid_evidence e
where e.seq > ?1 and e.open = 1
order by e.seq
limit ?2
