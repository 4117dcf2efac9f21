-- A table as it is after weeks: most completed, some due, some expired, some past their time.
insert into ibid_record (
  id, count, nonce, birth, owner, attempt, lease_us, state, flags, policy, point,
  created_at, due_at, expires_at, purge_at, reap_at, watch_state, watch_at, tenant, method, path, key, note
)
select sha256(n::text::bytea), 2, n, n, n, 1, 60000000,
       case n % 1000 when 0 then 2 else 3 end, 0, (select min(digest) from ibid_policy), 0,
       1700000000000000 + n,
       case n % 1000 when 0 then case n % 2000 when 0 then 1700000000000000 + n else 4000000000000000 end end,
       case n % 1000 when 0 then null when 1 then 1700000000000000 + n when 2 then 1700000000000000 + n
         else 4000000000000000 + n end,
       case n % 1000 when 0 then null when 1 then 1700000000000000 + n else 4000000000000000 + n end,
       case when n % 1000 in (1, 2) then 1700000000000000 + n else 4000000000000000 + n end,
       case n % 1000 when 0 then 2 end,
       case n % 1000 when 0 then case n % 2000 when 0 then 1700000000000000 + n else 4000000000000000 end end,
       'shop', 'POST', '/payments', 'key-' || n, (select note from ibid_record limit 1)
from generate_series(1, 300000) n
