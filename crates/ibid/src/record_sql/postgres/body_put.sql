-- Stores one body of a record's generation. $1, the id, is not needed here: a body is found by birth and created_at.
insert into ibid_body (born_at, birth, kind, data)
select $3::int8, $2::int8, $4::int8::int4, $5::bytea where $1::bytea is not null
on conflict (born_at, birth, kind) do update set data = excluded.data
