-- Store a body apart from a record that this transaction has written. ?3 is PostgreSQL's.
insert into ibid_body (slot, birth, data)
values ((select row from ibid_record where id = ?1) * 131072 + ?4, coalesce(?2, ?3), ?5)
on conflict (slot) do update set birth = excluded.birth, data = excluded.data
