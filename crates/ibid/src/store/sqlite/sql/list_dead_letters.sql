-- Dead letters after the row ?1, in the order of their begin, without their responses.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, r.status, null, null, null, 0, r.row
from ibid_record r indexed by ibid_record_dead_letter
where r.flags & 1 = 1 and r.row > ?1
order by r.row
limit ?2
