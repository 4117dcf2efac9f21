-- The replicas that read the binary log now.
select p.host from information_schema.processlist p where p.command like 'Binlog Dump%'
