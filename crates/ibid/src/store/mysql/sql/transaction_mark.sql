-- The number of this session's transaction, if the server's list has it already. Those that only read have numbers beyond 2^48.
-- It needs the privilege `process`.
select t.trx_id from information_schema.innodb_trx t
where t.trx_mysql_thread_id = connection_id() and t.trx_id < 281474976710656
