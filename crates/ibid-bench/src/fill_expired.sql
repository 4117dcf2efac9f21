-- Completed records from $1 to $2 with their answers, shaped as the one that is there; they go $3 microseconds from now.
with made as (
  insert into ibid_record (
    id, count, nonce, birth, owner, attempt, lease_us, state, flags, policy, point,
    created_at, ran_at, completed_at, expires_at, purge_at, reap_at, fingerprint, tenant, method, path, key, note
  )
  select sha256(('fill-' || n)::bytea), 2, n, n, n, 1, r.lease_us, 3, 0, r.policy, 0,
         r.created_at, r.created_at, r.created_at, r.created_at + $3 + n, r.created_at + $3 + n,
         r.created_at + $3 + n,
         r.fingerprint, r.tenant, r.method, r.path, 'fill-' || n, r.note
  from generate_series($1::int8, $2::int8 - 1) n, (select * from ibid_record where key = 'template') r
  returning created_at, birth
)
insert into ibid_body (born_at, birth, kind, data)
select made.created_at, made.birth, 1, b.data
from made, (select b.data from ibid_body b join ibid_record r on r.created_at = b.born_at and r.birth = b.birth where r.key = 'template') b
