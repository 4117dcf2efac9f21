-- Returns the id behind ?4 further records behind the id ?3 within ?1 and ?2, where a piece of a list ends; no row if fewer are left.
select r.id
from ibid_record r force index (primary)
where r.id >= ?1 and r.id <= ?2 and r.id > ?3
order by r.id
limit 1 offset ?4
