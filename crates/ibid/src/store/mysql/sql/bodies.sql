-- Returns the bodies of one generation of a record, without that of its response.
select b.kind, b.data
from ibid_record r
join ibid_body b on b.born_at = r.created_at and b.birth = r.birth
where r.id = ?1 and r.birth = ?2 and b.kind <> 1
order by b.kind
