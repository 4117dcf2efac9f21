-- The first writer wins. No row back: another writer's value was there first; read it.
insert into ibid_meta (name, value) values ($1, $2) on conflict (name) do nothing returning value
