-- Read the records behind the id ?1, at most ?3, with their responses and policies, in the order of ids.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, r.status, r.lines,
       coalesce(r.body, iif(r.lines is null and r.sealed_by is null, null, (
         select b.data from ibid_body b where b.slot = r.row * 131072 + 1 and b.birth = r.birth
       ))), r.sealed_by, ?2, p.data
from ibid_record r
left join ibid_policy p on p.id = r.policy
where r.id > ?1
order by r.id
limit ?3
