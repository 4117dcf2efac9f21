-- Returns records in one state whose due instant has passed, longest due first, behind the position $2, $3. A record in its
-- first lease is not among them until the lease scan has entered it.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy,
       r.point, r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, r.status, r.lines,
       case when r.lines is not null or r.sealed_by is not null then coalesce(r.body, (
         select b.data from ibid_body b where b.born_at = r.created_at and b.birth = r.birth and b.kind = 1
       )) end,
       r.sealed_by, (extract(epoch from statement_timestamp()) * 1000000)::int8, r.watch_at
from ibid_record r
where r.watch_state = $1::int8::int2
  and r.watch_at >= $2::int8
  and (r.watch_at, r.id) > ($2::int8, $3::uuid)
  and r.watch_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8
order by r.watch_at, r.id
limit $4::int8
