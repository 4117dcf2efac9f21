-- All that one generation of a record keeps beside it.
select b.slot - r.row * 131072, b.data
from ibid_record r
join ibid_body b on b.slot between r.row * 131072 and r.row * 131072 + 131071
where r.id = ?1 and b.birth = ?2
order by b.slot
