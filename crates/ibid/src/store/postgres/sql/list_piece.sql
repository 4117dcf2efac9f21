-- Returns the position of the $6th record behind the id $5 within $1 and $2, where a piece of a list ends; no row if fewer are
-- left. In this order the position has no instant ($4), and the state ($3) is not looked at.
select 0::int8, r.id
from ibid_record r
where r.id >= $1::uuid and r.id <= $2::uuid and r.id > $5::uuid
order by r.id
offset $6::int8 - 1
limit 1
