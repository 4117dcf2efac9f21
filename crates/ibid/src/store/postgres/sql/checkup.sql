-- What answers, what a session of ours is given there, and what time it has.
select current_setting('server_version'),
       current_setting('server_version_num')::int8,
       pg_is_in_recovery(),
       current_setting('transaction_read_only')::bool,
       current_setting('fsync'),
       current_setting('synchronous_commit'),
       current_setting('full_page_writes'),
       current_setting('synchronous_standby_names'),
       (extract(epoch from clock_timestamp()) * 1000000)::int8
