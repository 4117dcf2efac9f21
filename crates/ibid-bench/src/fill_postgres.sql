-- Completed records, shaped as the one that is there.
insert into ibid_record (
  id, count, nonce, birth, owner, attempt, lease_us, state, flags, policy, point,
  created_at, ran_at, completed_at, expires_at, purge_at, reap_at, fingerprint, tenant, method, path, key, note
)
select sha256(('fill-' || n)::bytea), 2, n, n, n, 1, r.lease_us, 3, 0, r.policy, 0,
       r.created_at, r.created_at, r.created_at, r.created_at + 86400000000 + n, r.created_at + 86400000000 + n,
       r.created_at + 86400000000 + n,
       r.fingerprint, r.tenant, r.method, r.path, 'fill-' || n, r.note
from generate_series($1::int8, $2::int8 - 1) n, (select * from ibid_record limit 1) r
