-- Fails for a user without the privilege `process`.
select 1 from information_schema.innodb_trx limit 1
