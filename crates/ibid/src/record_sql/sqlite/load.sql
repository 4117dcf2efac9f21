-- Load one record with its response. A body apart that an earlier generation left is not its own.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, r.status, r.lines,
       coalesce(r.body, iif(r.lines is null and r.sealed_by is null, null, (
         select b.data from ibid_body b where b.slot = r.row * 131072 + 1 and b.birth = r.birth
       ))), r.sealed_by, ?2
from ibid_record r
where r.id = ?1
