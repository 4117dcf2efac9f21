-- The first writer wins.
insert into ibid_meta (name, value) values (?1, ?2) on conflict (name) do nothing
