-- Locks evidence whose time is over, oldest first. A locked row waits for the next time.
select e.seq from ibid_evidence e force index (ibid_evidence_purge)
where e.purge_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
order by e.purge_at
limit ?1
for update skip locked
