-- Counts what an index has: records in the states $1 (pending), $2 (retryable) and $3 (unknown), and dead letters. Also returns since when the
-- unknown record that ran longest ago waits, now, and how large the table is: bytes, rows and the share of each state by the
-- server's statistics (null before the first analyze).
select w.pending, w.retryable, w.unknown, w.oldest_unknown,
       (select count(*) from ibid_record r where r.flags & 1 <> 0),
       (extract(epoch from statement_timestamp()) * 1000000)::int8,
       pg_relation_size('ibid_record')::int8,
       (select nullif(c.reltuples, -1)::float8 from pg_class c where c.oid = 'ibid_record'::regclass),
       (select s.most_common_vals::text::int8[] from pg_stats s
         where s.schemaname = any (current_schemas(false)) and s.tablename = 'ibid_record' and s.attname = 'state' limit 1),
       (select s.most_common_freqs::float8[] from pg_stats s
         where s.schemaname = any (current_schemas(false)) and s.tablename = 'ibid_record' and s.attname = 'state' limit 1)
from (
  select count(*) filter (where r.watch_state = $1::int8::int2) as pending,
         count(*) filter (where r.watch_state = $2::int8::int2) as retryable,
         count(*) filter (where r.watch_state = $3::int8::int2) as unknown,
         min(coalesce(r.ran_at, r.created_at)) filter (where r.watch_state = $3::int8::int2) as oldest_unknown
  from ibid_record r
  where r.watch_state = any (array[$1::int8::int2, $2::int8::int2, $3::int8::int2]) and r.watch_at is not null
) w
