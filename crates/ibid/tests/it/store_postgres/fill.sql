-- A table as it is after weeks: most completed, some due, some expired, some past their time.
insert into ibid_record (
  id, birth, created_at, policy, reap_at, flags, tenant, method, path, key, nonce, due_at, expires_at, purge_at, watch_at,
  count, state, watch_state
)
select md5(n::text)::uuid, n, 1700000000000000 + n, (select min(digest) from ibid_policy),
       case when n % 1000 in (1, 2) then 1700000000000000 + n else 4000000000000000 + n end,
       0, 'shop', 'POST', '/payments', 'key-' || n, n,
       case n % 1000 when 0 then case n % 2000 when 0 then 1700000000000000 + n else 4000000000000000 end end,
       case n % 1000 when 0 then null when 1 then 1700000000000000 + n when 2 then 1700000000000000 + n
         else 4000000000000000 + n end,
       case n % 1000 when 0 then null when 1 then 1700000000000000 + n else 4000000000000000 + n end,
       case n % 1000 when 0 then case n % 2000 when 0 then 1700000000000000 + n else 4000000000000000 end end,
       2, case n % 1000 when 0 then 2 else 3 end, case n % 1000 when 0 then 2 end
from generate_series(1, 300000) n
