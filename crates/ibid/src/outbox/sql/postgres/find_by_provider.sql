-- Finds the effect of kind $3 that has the provider's id $2; two rows mean that the id is ambiguous. effect.sql follows.
with t as materialized (select coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now),
     e as (
       select e.*
       from ibid_effect e
       where e.provider_id = $2 and e.kind = $3
       limit 2
     )
