-- Counts records that would become tombstones now, and those that would be deleted.
select coalesce(sum(r.purge_at > timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))), 0), coalesce(sum(r.purge_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))), 0)
from ibid_record r force index (ibid_record_reap)
where r.reap_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
  and not exists (
    select 1 from ibid_effect_call c join ibid_effect e on e.seq = c.seq where c.record = r.id and e.done_at is null
  )
