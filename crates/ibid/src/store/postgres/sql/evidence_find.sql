-- Returns the evidence of one event.
select e.seq, e.source, e.event, e.record, e.owner, e.as_of, e.open, e.found
from ibid_evidence e
where e.source = $1::text and e.event = $2::text
