-- Counts policies that reap_policies.sql would delete now.
select 0::int8, count(*)
from ibid_policy p
where p.seen_at + p.keep_us + 86400000000 < (extract(epoch from statement_timestamp()) * 1000000)::int8
  and (
    select true from ibid_record r
    where r.reap_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8 + 7200000000 and r.policy = p.digest
    limit 1
  ) is null
