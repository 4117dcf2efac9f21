-- Policies under which first leases are looked through, and how far behind their ends the reaper's instants are. A place that is
-- not there yet begins when the policy was put here, before any record named it.
with made as (
  insert into ibid_walk (policy, at)
  select p.digest, p.put_at
  from ibid_policy p
  where p.ahead_us is not null and (select true from ibid_walk w where w.policy = p.digest) is null
  order by p.digest
  on conflict (policy) do nothing
)
select digest, ahead_us from ibid_policy where ahead_us is not null order by digest
