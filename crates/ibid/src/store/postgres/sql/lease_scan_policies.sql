-- Returns the policies whose first leases have to be scanned, and how far behind the end of such a lease the reaper's instant is:
-- those with the same distance are next to each other.
-- It makes a position for those that have none: the instant at which the policy was stored, before any record named it.
--
-- A policy is scanned until the scan has passed the last first lease that can exist: seen_at is at most an hour behind the last
-- begin, and $1 is the grace of the scan and another hour. One that is more than $2 microseconds behind comes after the others.
with made as (
  insert into ibid_walk (policy, at)
  select p.digest, p.put_at
  from ibid_policy p
  where (select true from ibid_walk w where w.policy = p.digest) is null
  order by p.digest
  on conflict (policy) do nothing
)
select p.digest, p.ahead_us,
       x.at < (extract(epoch from statement_timestamp()) * 1000000)::int8 - $2::int8 as is_behind
from ibid_policy p
cross join lateral (
  select coalesce((select w.at from ibid_walk w where w.policy = p.digest), p.put_at) as at
) x
where x.at < p.seen_at + p.lease_us + 3600000000 + $1::int8
order by is_behind, p.ahead_us, p.digest
