-- Bodies apart of one generation of a record, but for its response (kind 1).
select b.slot - r.row * 131072, b.data
from ibid_record r
join ibid_body b on b.slot between r.row * 131072 + 2 and r.row * 131072 + 131071
where r.id = ?1 and b.birth = ?2
order by b.slot
