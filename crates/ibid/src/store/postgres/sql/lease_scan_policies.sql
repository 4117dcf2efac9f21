-- Returns the policies whose first leases have to be scanned, and how far behind the end of such a lease the reaper's instant is.
-- It makes a position for those that have none: the instant at which the policy was stored, before any record named it.
--
-- A policy is scanned until the scan has passed the last first lease that can exist: seen_at is at most an hour behind the last
-- begin, and $1 is the grace of the scan and another hour.
with made as (
  insert into ibid_walk (policy, at)
  select p.digest, p.put_at
  from ibid_policy p
  where (select true from ibid_walk w where w.policy = p.digest) is null
  order by p.digest
  on conflict (policy) do nothing
)
select p.digest, p.ahead_us
from ibid_policy p
where coalesce((select w.at from ibid_walk w where w.policy = p.digest), p.put_at)
      < p.seen_at + p.lease_us + 3600000000 + $1::int8
order by p.digest
