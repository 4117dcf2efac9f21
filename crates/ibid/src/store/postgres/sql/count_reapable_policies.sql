-- Counts policies that reap_policies.sql would delete now, with the same bound $1 as its $3.
with overdue as materialized (
  select r.policy
  from ibid_record r
  where r.reap_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8 - 79200000000
  order by r.reap_at
  limit $1::int8
),
named as materialized (
  select distinct policy from overdue
)
select 0::int8, count(*)
from ibid_policy p
where p.seen_at + p.keep_us + 86400000000 < (extract(epoch from statement_timestamp()) * 1000000)::int8
  and p.digest not in (select policy from named)
  and (select count(*) from overdue) < $1::int8
