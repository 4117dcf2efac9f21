-- Deletes all bodies of a record's generation. $1, the id, is not needed here: a body is found by birth and created_at.
delete from ibid_body where born_at = $3::int8 and birth = $2::int8 and $1::bytea is not null
