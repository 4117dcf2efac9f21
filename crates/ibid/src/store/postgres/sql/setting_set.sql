-- Compare and set: the value is replaced only where it is still the one that the writer read. A second writer waits for
-- the first one's commit and then compares with what that left. Returns what setting_add.sql returns; $4 is its $3.
with t as materialized (
  select case when $4::boolean and current_setting('synchronous_commit') not in ('on', 'remote_apply')
              then set_config('synchronous_commit', 'on', true) end as raised
)
update ibid_meta m set value = $3::bytea
from t
where m.name = $1::text and m.value = $2::bytea
returning (select max(needs_at_least) from ibid_schema_step)
