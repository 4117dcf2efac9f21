-- Finds the effect that is called under the key $2; two rows would mean that two calls share a key. effect.sql follows.
with t as materialized (select coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now),
     e as (
       select e.*
       from ibid_effect e
       where e.seq = any (array(select c.seq from ibid_effect_call c where c.downstream_key = $2 limit 2))
     )
