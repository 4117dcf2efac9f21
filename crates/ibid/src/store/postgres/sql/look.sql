-- What kind of server answers, how durable its commits are, and whether ibid's tables may be there.
select current_setting('server_version_num')::int8,
       pg_is_in_recovery() or current_setting('transaction_read_only')::bool,
       current_setting('fsync'),
       current_setting('synchronous_commit'),
       current_setting('synchronous_standby_names'),
       to_regclass('ibid_migration') is not null
