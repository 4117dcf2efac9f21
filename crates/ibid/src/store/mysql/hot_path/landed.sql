-- Returns the records that kept changes of a flight from being written.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, r.status, r.lines,
       case when r.lines is not null or r.sealed_by is not null then coalesce(r.body, (
         select b.data from ibid_body b where b.born_at = r.created_at and b.birth = r.birth and b.kind = 1
       )) end,
       r.sealed_by, timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
from $rows straight_join ibid_record r force index (primary) on r.id = w.id
