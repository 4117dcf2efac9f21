-- Loads the effects whose numbers are in the JSON array $2. effect.sql follows.
with t as materialized (select coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now),
     e as (
       select e.*
       from ibid_effect e
       where e.seq = any (array(select json_array_elements_text($2::text::json)::int8))
     )
