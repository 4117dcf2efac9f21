-- Records whose id is between ?1 and ?2, and after ?3, in the order of their ids, without their responses.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, r.status, null, null, null, 0, r.row
from ibid_record r
where r.id >= ?1 and r.id <= ?2 and r.id > ?3
order by r.id
limit ?4
