-- Picks up to ?3 due effects of the kind ?1 in the state ?2, the oldest first, and locks them for a claim. Blocked effects are
-- apart in the index. Effects that another worker is claiming or ending are skipped; within the update of take.sql MariaDB would
-- wait for them.
select x.seq, x.tenant, x.due_at
from ibid_effect x force index (ibid_effect_due)
where x.kind = ?1 and x.state = ?2 and x.blocked = 0
  and x.due_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
order by x.due_at
limit ?3
for update skip locked
