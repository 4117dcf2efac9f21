-- Deletes all bodies of a record's generation, where the transaction can't see which there are. ?1, the id, is not needed here. At
-- REPEATABLE READ it also locks a gap, see mod.rs. Without the index a small table would be read as a whole, and the statement
-- would wait for bodies of others.
delete b from ibid_body b force index (primary) where b.born_at = ?3 and b.birth = ?2
