-- Whether our tables are there, and what the header says of a file of the first layout.
select exists (select 1 from sqlite_schema where type = 'table' and name = 'ibid_meta'),
       (select application_id from pragma_application_id),
       (select user_version from pragma_user_version)
