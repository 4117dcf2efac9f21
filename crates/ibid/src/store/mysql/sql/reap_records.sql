-- Locks the next ?3 records behind the position ?1, ?2 whose time is over, oldest first. A locked row waits for the next round,
-- a record with an open effect for its effect; dead letters are at the end of the order, which no clock reaches. Returns
-- whether each is deleted (past purge_at) or only stripped, and how long ago it could have been reaped.
select r.id, r.birth, r.created_at, r.reap_at, r.purge_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)), timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) - r.reap_at
from ibid_record r force index (ibid_record_reap)
where r.reap_at >= ?1 and r.reap_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
  and (r.reap_at > ?1 or r.id > ?2)
  and not exists (
    select 1 from ibid_effect_call c join ibid_effect e on e.seq = c.seq where c.record = r.id and e.done_at is null
  )
order by r.reap_at, r.id
limit ?3
for update skip locked
