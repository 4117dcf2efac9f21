-- Wait for locks no longer than $1 from here on, to the end of the transaction; how long it was before.
with was as materialized (select current_setting('lock_timeout') as setting)
select was.setting from was where set_config('lock_timeout', $1, true) is not null
