-- A record as the caller's transaction sees it.
select coalesce($2::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8),
       r.count::int8, r.nonce, r.birth, r.owner, r.attempt::int8, r.state::int8, r.flags::int8, r.policy, p.data,
       r.point::int8, r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, b.data
from ibid_record r
left join ibid_policy p on p.digest = r.policy
left join ibid_body b on b.born_at = r.created_at and b.birth = r.birth and b.kind = 1
where r.id = $1
