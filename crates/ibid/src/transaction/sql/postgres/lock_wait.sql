-- Wait for locks no longer than $1 from here on, to the end of the transaction; how long it was before. A caller that
-- falls silent with its reservation in hand is cut off after $2 ms: nobody could take over what was never committed.
with was as materialized (select current_setting('lock_timeout') as setting)
select was.setting from was
where set_config('lock_timeout', $1, true) is not null
  and set_config('idle_in_transaction_session_timeout', $2, true) is not null
