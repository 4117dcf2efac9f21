-- Open records in state ?1, those that are due first in front, after the position (?2, ?3), without their responses.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, r.status, null, null, null, r.watch_at, r.row
from ibid_record r indexed by ibid_record_open
where r.watch_at is not null and r.state = ?1
  and r.watch_at >= ?2 and (r.watch_at > ?2 or r.row > ?3)
order by r.watch_at, r.row
limit ?4
