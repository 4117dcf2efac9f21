-- Inserts records whose ids are free. The join passes over rows that are there, locked or not, without waiting; the last line
-- is for those that came in between. Ids are sorted, so that two flights never wait for each other.
insert into ibid_record (
  id, count, nonce, birth, owner, attempt, state, flags, policy, point,
  written_at, created_at, ran_at, completed_at, due_at, expires_at, purge_at, reap_at,
  fingerprint, tenant, method, path, `key`, note, status
)
$with
select w.id, w.count, w.nonce, w.nonce, w.owner, w.attempt, w.state, w.flags, w.policy, w.point,
       @ibid_now, @ibid_now, if(w.ran = 1, @ibid_now, null), if(w.completed = 1, @ibid_now, null),
       @ibid_now + w.due, @ibid_now + w.expires, @ibid_now + w.purge,
       if(w.flags & 1, 9223372036854775807, @ibid_now + least(w.purge, coalesce(w.expires, w.purge))),
       w.fingerprint, w.tenant, w.method, w.path, w.key, w.note, w.status
from w
left join ibid_record x on x.id = w.id
where x.id is null
on duplicate key update id = ibid_record.id
