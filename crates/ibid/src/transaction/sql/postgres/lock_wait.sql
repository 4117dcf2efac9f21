-- Limits waits for locks to $1, to the end of the transaction. Returns the limit before. The server ends a session that is
-- idle for $2 ms with its reservation uncommitted: no other attempt could take over a record that is not committed.
with was as materialized (select current_setting('lock_timeout') as setting)
select was.setting from was
where set_config('lock_timeout', $1, true) is not null
  and set_config('idle_in_transaction_session_timeout', $2, true) is not null
