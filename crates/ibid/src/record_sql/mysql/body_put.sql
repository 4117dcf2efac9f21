-- Stores one body of a record's generation. ?1, the id, is not needed here: a body is found by birth and created_at.
insert into ibid_body (born_at, birth, kind, data) values (?3, ?2, ?4, ?5)
on duplicate key update data = values(data)
