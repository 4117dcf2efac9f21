-- Set the schema of our tables, in digits that a person can read.
insert into ibid_meta (name, value) values ('schema', cast(cast(?1 as text) as blob))
on conflict (name) do update set value = excluded.value
