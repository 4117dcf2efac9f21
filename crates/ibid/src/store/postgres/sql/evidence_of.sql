-- Returns open evidence of one record behind the position $2, oldest first.
select e.seq, e.source, e.event, e.record, e.owner, e.as_of, e.open, e.found
from ibid_evidence e
where e.record = $1::uuid and e.seq > $2::int8 and e.open
order by e.seq
limit $3::int8
