-- Reads the records behind the id $1, at most $3, with their responses and policies, in the order of ids.
select uuid_send(r.id), r.count::int8, r.nonce, r.birth, r.owner, r.attempt::int8, r.state::int8, r.flags::int8, r.policy,
       r.point::int8, r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, r.status::int8, r.lines,
       case when r.lines is not null or r.sealed_by is not null then coalesce(r.body, (
         select b.data from ibid_body b where b.born_at = r.created_at and b.birth = r.birth and b.kind = 1
       )) end,
       r.sealed_by,
       coalesce($2::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8), p.data
from ibid_record r
left join ibid_policy p on p.digest = r.policy
where r.id > encode($1::bytea, 'hex')::uuid
order by r.id
limit $3::int8
