-- Lists records in the order of ids, without their responses, behind the id ?13 and within ?1 and ?2. No index serves its other
-- filters, because every write would pay for one; so it may read many rows, and its time is bounded. ?12 is list_waiting.sql's.
select r.id, r.count, r.nonce, r.birth, r.owner, r.attempt, r.state, r.flags, r.policy, r.point,
       r.created_at, r.ran_at, r.completed_at, r.due_at, r.expires_at, r.purge_at,
       r.fingerprint, r.tenant, r.method, r.path, r.key, r.note, r.status, null, null, null,
       timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)), 0
from ibid_record r force index (primary)
where r.id >= ?1 and r.id <= ?2 and r.id > ?13
  and (?3 is null or r.state = ?3)
  and (?4 is null or r.tenant = ?4)
  and (?5 is null or r.key = ?5)
  and (?6 is null or r.method = ?6)
  and (?7 is null or r.path like ?7)
  and (?8 is null or length(r.path) - length(replace(r.path, '/', '')) = ?8)
  and (?9 is null or r.created_at >= ?9)
  and (?10 is null or r.created_at < ?10)
  and (?11 is null or r.created_at < timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) - ?11)
order by r.id
limit ?14
