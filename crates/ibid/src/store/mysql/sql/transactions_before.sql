-- A transaction that has written, has this number or a smaller one, and runs.
select 1 from information_schema.innodb_trx t where t.trx_id <= ?1 limit 1
