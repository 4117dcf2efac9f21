-- Keep something beside a record, of the generation that stands.
insert into ibid_body (born_at, birth, kind, data)
select r.created_at, $2, $3::int8::int4, $4 from ibid_record r where r.id = $1
on conflict (born_at, birth, kind) do update set data = excluded.data
