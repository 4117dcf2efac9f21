-- Completed records $1 to $2, shaped as the one that the engine wrote under the key `template`. Their first request came $3
-- microseconds before that one and a microsecond after each other; they expire a day after it.
insert into ibid_record (
  id, birth, created_at, policy, reap_at, ran_at, flags, tenant, method, path, key, fingerprint, nonce, completed_at, expires_at,
  purge_at, count, status, state, note, lines, body
)
select encode(substr(sha256((k.name)::bytea), 1, 16), 'hex')::uuid, k.n, k.at, r.policy, k.at + 86400000000, k.at, r.flags, r.tenant,
       r.method, r.path, k.name, r.fingerprint, k.n, k.at, k.at + 86400000000, k.at + 86400000000, r.count, r.status, r.state,
       r.note, r.lines, r.body
from (select * from ibid_record where key = 'template') r,
     lateral (
       select n, 'fill-' || lpad(n::text, 31, '0') as name, r.created_at - $3 + n as at
       from generate_series($1::int8, $2::int8 - 1) n
     ) k
