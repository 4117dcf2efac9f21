-- Whether our tables are there, whether they are an earlier build's, and what the header says of the first layout.
select exists (select 1 from sqlite_schema where type = 'table' and name = 'ibid_meta'),
       exists (select 1 from sqlite_schema where type = 'table' and name = 'ibid_record')
         and not exists (select 1 from pragma_table_info('ibid_ordered') where name = 'rows'),
       (select application_id from pragma_application_id)
