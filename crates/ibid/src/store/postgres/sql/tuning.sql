-- Settings of the server that a large store depends on, and the sizes to compare them with. The number of records is the planner's
-- estimate; -1 before the first vacuum. A table's own option wins over the server's setting.
select extract(epoch from current_setting('checkpoint_timeout')::interval)::int8,
       pg_size_bytes(current_setting('max_wal_size')),
       pg_size_bytes(current_setting('shared_buffers')),
       current_setting('autovacuum')::bool
         and coalesce((select option_value::bool from pg_options_to_table(c.reloptions) where option_name = 'autovacuum_enabled'), true),
       coalesce(
         (select option_value::float8 from pg_options_to_table(c.reloptions) where option_name = 'autovacuum_vacuum_cost_delay'),
         nullif((select setting::float8 from pg_settings where name = 'autovacuum_vacuum_cost_delay'), -1),
         (select setting::float8 from pg_settings where name = 'vacuum_cost_delay')
       ),
       coalesce(
         (select option_value::int8 from pg_options_to_table(c.reloptions) where option_name = 'autovacuum_vacuum_cost_limit'),
         nullif((select setting::int8 from pg_settings where name = 'autovacuum_vacuum_cost_limit'), -1),
         (select setting::int8 from pg_settings where name = 'vacuum_cost_limit')
       ),
       c.reltuples::int8,
       pg_indexes_size(c.oid)
from pg_class c
where c.oid = 'ibid_record'::regclass
