-- Keep something beside a record.
insert into ibid_body (id, birth, kind, data) values ($1, $2, $3::int8::int4, $4)
on conflict (id, birth, kind) do update set data = excluded.data
