-- Returns the numbers of the ended effects of the record ?1 that have a payload or a result.
select c.seq
from ibid_effect_call c force index (ibid_effect_call_once)
straight_join ibid_effect e force index (primary) on e.seq = c.seq
where c.record = ?1 and (c.payload is not null or c.result is not null) and e.done_at is not null
