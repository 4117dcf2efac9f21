-- Keep something beside a record that was written in this transaction.
insert into ibid_body (slot, birth, data)
values ((select row from ibid_record where id = ?1) * 131072 + ?2, ?3, ?4)
on conflict (slot) do update set birth = excluded.birth, data = excluded.data
