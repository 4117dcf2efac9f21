-- Stores policies that are new, and notes the use of those whose last use was noted more than an hour ago. In the usual case
-- it writes nothing and locks nothing.
with p as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now, u.*
  from unnest($1::int8[], $2::bytea[], $3::int8[], $4::int8[], $5::int8[]) as u (digest, data, lease_us, ahead_us, keep_us)
)
insert into ibid_policy as s (digest, put_at, seen_at, lease_us, ahead_us, keep_us, data)
select p.digest, p.now, p.now, p.lease_us, p.ahead_us, p.keep_us, p.data
from p
where (select x.seen_at from ibid_policy x where x.digest = p.digest) is null
   or (select x.seen_at from ibid_policy x where x.digest = p.digest) < p.now - 3600000000
order by p.digest
on conflict (digest) do update set seen_at = greatest(s.seen_at, excluded.seen_at)
