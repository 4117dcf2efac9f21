-- Whose file it is and which schema it has: one statement, so that another process cannot make it in between.
select (select application_id from pragma_application_id),
       (select user_version from pragma_user_version),
       (select count(*) from sqlite_schema)
