-- Deletes one body of a record's generation. ?1, the id, is not needed here.
delete b from ibid_body b force index (primary) where b.born_at = ?3 and b.birth = ?2 and b.kind = ?4
