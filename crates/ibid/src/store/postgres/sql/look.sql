-- What kind of server answers, how durable its commits are, whether ibid's tables may be there, and whether the session
-- has ibid's settings. (`to_regclass` may still say no to whoever waited for another to make them.)
select current_setting('server_version_num')::int8,
       pg_is_in_recovery() or current_setting('transaction_read_only')::bool,
       current_setting('fsync'),
       current_setting('synchronous_commit'),
       current_setting('synchronous_standby_names'),
       exists (select from pg_class where relname = 'ibid_migration' and pg_table_is_visible(oid)),
       current_setting('ibid.settings', true) is not distinct from 'on'
