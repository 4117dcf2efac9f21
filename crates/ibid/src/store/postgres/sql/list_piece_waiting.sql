-- Returns the position of the $6th record in the state $3 behind the position $4, $5, through the order of due records, whatever
-- its id; otherwise as list_piece.sql does.
select r.watch_at, r.id
from ibid_record r
where r.watch_state = $3::int8::int2 and r.watch_at >= $4::int8 and (r.watch_at, r.id) > ($4::int8, $5::uuid)
order by r.watch_at, r.id
offset $6::int8 - 1
limit 1
