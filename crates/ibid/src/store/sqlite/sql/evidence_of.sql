-- Open evidence about the record or effect ?1 after the number ?2, oldest first.
select e.seq, e.source, e.event, e.record, e.owner, e.as_of, e.open, e.found
from ibid_evidence e
where e.record = ?1 and e.seq > ?2 and e.open = 1
order by e.seq
limit ?3
