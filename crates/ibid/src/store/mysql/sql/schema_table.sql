-- One row if the table of steps exists.
select 1 from information_schema.tables where table_schema = database() and table_name = 'ibid_schema_step'
