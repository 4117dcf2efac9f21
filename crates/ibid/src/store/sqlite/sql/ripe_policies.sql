-- How many policies reap_policies.sql would delete at ?1, with the same bound ?2 as its ?3.
with open as materialized (
  select r.policy from ibid_record r indexed by ibid_record_open where r.watch_at is not null limit ?2
),
overdue as materialized (
  select r.policy
  from ibid_record r indexed by ibid_record_reap
  where r.reap_at is not null and r.reap_at <= ?1 - 79200000000
  order by r.reap_at
  limit ?2
)
select 0, count(*) from ibid_policy p
where p.seen_at < ?1 - p.life_us
  and p.id not in (select policy from open union all select policy from overdue)
  and (select count(*) from open) < ?2
  and (select count(*) from overdue) < ?2
  and not exists (select 1 from ibid_reap_range where at <= ?1 - 79200000000)
