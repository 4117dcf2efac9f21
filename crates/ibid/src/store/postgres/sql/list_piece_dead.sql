-- Returns the position of the $6th dead letter behind the id $5 within $1 and $2; otherwise as list_piece.sql does.
select 0::int8, r.id
from ibid_record r
where r.flags & 1 <> 0
  and r.id >= $1::uuid and r.id <= $2::uuid and r.id > $5::uuid
order by r.id
offset $6::int8 - 1
limit 1
