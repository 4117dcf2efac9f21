-- Records in state ?1 that are due by ?2, longest due first, after the position (?3, ?4).
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, r.status, r.lines,
       coalesce(r.body, iif(r.lines is null and r.sealed_by is null, null, (
         select b.data from ibid_body b where b.slot = r.row * 131072 + 1 and b.birth = r.birth
       ))), r.sealed_by, r.watch_at, r.row
from ibid_record r indexed by ibid_record_open
where r.watch_at is not null and r.state = ?1 and r.watch_at <= ?2
  and r.watch_at >= ?3 and (r.watch_at > ?3 or r.row > ?4)
order by r.watch_at, r.row
limit ?5
