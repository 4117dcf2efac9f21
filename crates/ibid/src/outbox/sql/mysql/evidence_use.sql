-- Evidence is used up in the transaction of the change that it led to. ?1 is SQLite's. Without the index a small table would be
-- read as a whole, and the statement would wait for evidence of others.
update ibid_evidence force index (ibid_evidence_once)
set open = 0, purge_at = timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + ?4
where source = ?2 and event = ?3
