-- A record inside the caller's transaction, which holds the file's only write lock. ?3 is PostgreSQL's.
select ?2,
       r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, p.data,
       r.point, r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, b.data
from ibid_record r
left join ibid_policy p on p.id = r.policy
left join ibid_body b on b.slot = r.row * 131072 + 1 and b.birth = r.birth
where r.id = ?1 and ?3 = ?3
