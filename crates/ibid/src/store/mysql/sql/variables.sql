-- Settings that decide whether ibid may use the server. Names that the server does not know are not listed. The server's default may
-- cut the list off.
set session sql_select_limit = 18446744073709551615;
show global variables where variable_name in (
  'version', 'version_comment', 'read_only', 'super_read_only', 'innodb_read_only', 'innodb_flush_log_at_trx_commit', 'log_bin',
  'sync_binlog', 'binlog_format', 'wsrep_on', 'wsrep_provider', 'max_allowed_packet'
)
