-- Returns open evidence behind the position ?1, oldest first.
select e.seq, e.source, e.event, e.record, e.owner, e.as_of, e.open, e.found, e.nonce
from ibid_evidence e force index (ibid_evidence_open)
where e.open = 1 and e.seq > ?1
order by e.seq
limit ?2
