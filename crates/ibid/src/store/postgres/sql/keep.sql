-- The first writer wins. No row back: somebody else's value came up meanwhile; ask for it.
insert into ibid_meta (name, value) values ($1, $2) on conflict (name) do nothing returning value
