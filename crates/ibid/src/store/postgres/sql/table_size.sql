-- Returns how large the table of records is: bytes, and rows and the share of each state by the server's statistics (null before
-- the first analyze).
select pg_relation_size('ibid_record')::int8,
       (select nullif(c.reltuples, -1)::float8 from pg_class c where c.oid = 'ibid_record'::regclass),
       (select s.most_common_vals::text::int8[] from pg_stats s
         where s.schemaname = any (current_schemas(false)) and s.tablename = 'ibid_record' and s.attname = 'state' limit 1),
       (select s.most_common_freqs::float8[] from pg_stats s
         where s.schemaname = any (current_schemas(false)) and s.tablename = 'ibid_record' and s.attname = 'state' limit 1)
