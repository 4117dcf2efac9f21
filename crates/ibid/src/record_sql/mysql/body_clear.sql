-- Deletes all bodies of a record's generation. ?1, the id, is not needed here. Without the index a small table would be read
-- as a whole, and the statement would wait for bodies of others.
delete b from ibid_body b force index (primary) where b.born_at = ?3 and b.birth = ?2
