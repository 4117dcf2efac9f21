-- Moves the due instant of the locked records, and nothing else.
update $rows straight_join ibid_record r force index (primary) on r.id = w.id
set r.due_at = timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + w.lease_us
