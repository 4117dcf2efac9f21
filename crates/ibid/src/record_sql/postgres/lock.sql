-- Locks a record for the rest of the caller's transaction, and reads it as read.sql does. Until the transaction ends, the lock
-- is the lease: a session that is idle for longer than $3 ms while it holds the lock is ended by the server.
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
cross join (select set_config('idle_in_transaction_session_timeout', $3::int8::text, true) as set) s
where r.id = encode($1::bytea, 'hex')::uuid and s.set is not null
for no key update of r
