-- Records after the row ?1 up to ?2 that fit tenant, key, method and time, in the order of their begin, without their responses.
-- These columns have no index: every write would pay for it, and operators ask rarely.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, r.status, null, null, null, 0, r.row
from ibid_record r
where r.row > ?1 and r.row <= ?2
  and (?3 is null or r.tenant = ?3)
  and (?4 is null or r.key = ?4)
  and (?5 is null or r.method = ?5)
  and (?6 is null or r.state = ?6)
  and (?7 is null or r.created_at >= ?7)
  and (?8 is null or r.created_at < ?8)
order by r.row
limit ?9
