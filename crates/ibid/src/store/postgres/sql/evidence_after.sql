-- Returns open evidence behind the position $1, oldest first.
select e.seq, e.source, e.event, e.record, e.owner, e.as_of, e.open, e.found
from ibid_evidence e
where e.seq > $1::int8 and e.open
order by e.seq
limit $2::int8
