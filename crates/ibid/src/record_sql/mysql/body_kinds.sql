-- Returns the kinds of the bodies of a record's generation; null if there are none. No row: the transaction does not see the record
-- ?1 at the version ?4, ?5, so its snapshot may lack bodies.
select b.kind
from ibid_record r force index (primary)
left join ibid_body b force index (primary) on b.born_at = ?3 and b.birth = ?2
where r.id = ?1 and r.count = ?4 and r.nonce = ?5
