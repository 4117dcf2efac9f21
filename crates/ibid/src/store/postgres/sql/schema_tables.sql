-- Returns whether the table of steps exists, and whether the tables are those of a build from before the first release.
-- (`to_regclass` may still return null to a session that waited for another to create the table.)
select exists (select from pg_class where relname = 'ibid_schema_step' and pg_table_is_visible(oid)),
       exists (select from pg_class where relname = 'ibid_migration' and pg_table_is_visible(oid))
