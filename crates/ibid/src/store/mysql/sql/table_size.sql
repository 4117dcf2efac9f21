-- The server's estimate of the rows of the table, and its bytes.
select t.table_rows, t.data_length from information_schema.tables t where t.table_schema = database() and t.table_name = 'ibid_record'
