-- Sets the schema of ibid's tables, as readable digits.
insert into ibid_meta (name, value) values ('schema', cast(cast(?1 as text) as blob))
on conflict (name) do update set value = excluded.value
