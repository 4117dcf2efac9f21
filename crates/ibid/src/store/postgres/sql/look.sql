-- Returns the server's version, whether it is read-only, how durable its commits are, and whether the session has ibid's settings.
select current_setting('server_version_num')::int8,
       pg_is_in_recovery() or current_setting('transaction_read_only')::bool,
       current_setting('fsync'),
       current_setting('synchronous_commit'),
       current_setting('synchronous_standby_names'),
       current_setting('ibid.settings', true) is not distinct from 'on'
