-- Sets the schema of ibid's tables, or the step that a program must know at least, as readable digits.
insert into ibid_meta (name, value) values (?1, cast(cast(?2 as text) as blob))
on conflict (name) do update set value = excluded.value
