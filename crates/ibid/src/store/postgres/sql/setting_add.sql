-- The first writer wins. Returns the step of the schema that a program must know. No row back: another writer's value was there
-- first; read it. Where $3 is set, the commit waits for the
-- disk and for synchronous standbys, whatever the session is set to.
with t as materialized (
  select case when $3::boolean and current_setting('synchronous_commit') not in ('on', 'remote_apply')
              then set_config('synchronous_commit', 'on', true) end as raised
)
insert into ibid_meta (name, value)
select $1::text, $2::bytea from t
on conflict (name) do nothing
returning (select max(needs_at_least) from ibid_schema_step)
