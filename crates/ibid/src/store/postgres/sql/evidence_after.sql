-- Open evidence after a place, oldest first.
select e.seq, e.source, e.event, e.record, e.owner, e.as_of, e.open, e.found
from ibid_evidence e
where e.seq > $1 and e.open
order by e.seq
limit $2
