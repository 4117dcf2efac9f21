-- Deletes all bodies of the records whose ids are in the JSON array ?1, before copy_records_put.sql replaces these records.
delete b
from json_table(convert(?1 using utf8mb4), '$[*]' columns (id char(32) path '$')) x
straight_join ibid_record r force index (primary) on r.id = unhex(x.id)
straight_join ibid_body b force index (primary) on b.born_at = r.created_at and b.birth = r.birth
