-- Records in one state whose due instant has passed, longest due first.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, b.data
from ibid_record r
left join ibid_body b on b.slot = r.row * 131072 + 1 and b.birth = r.birth
where r.state = ?1 and r.due_at <= ?2
order by r.due_at
limit ?3
