-- Evidence is used up in the transaction of the change that it led to. ?1 is SQLite's.
update ibid_evidence
set open = 0, purge_at = timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + ?4
where source = ?2 and event = ?3
