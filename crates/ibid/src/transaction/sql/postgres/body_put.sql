-- Keep something beside a record.
insert into ibid_body (born_at, birth, kind, data) values ($1, $2, $3::int8::int4, $4)
on conflict (born_at, birth, kind) do update set data = excluded.data
