-- Picks up to ?5 due effects of the tenant ?4 and the kind ?3 in the state ?2, the oldest first, and locks them for a claim. It
-- reads no effect of another tenant. ?1 is SQLite's.
select x.seq, x.tenant, x.due_at
from ibid_effect x force index (ibid_effect_tenant)
where x.kind = ?3 and x.state = ?2 and x.blocked = 0 and x.tenant = ?4
  and x.due_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
order by x.due_at
limit ?5
for update skip locked
