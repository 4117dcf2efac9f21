-- Picks up to ?4 due effects of the kinds in ?3 in the state ?2, the oldest first, for a claim.
--
-- Each kind has a bounded scan, so effects of other kinds cost nothing; blocked effects are not in the index.
select e.seq, e.tenant, e.due_at
from json_each(?3) k
cross join ibid_effect e
where e.seq in (
  select x.seq
  from ibid_effect x indexed by ibid_effect_due
  where x.kind = k.value and x.state = ?2 and x.blocked = 0 and x.due_at <= ?1
  order by x.due_at
  limit ?4
)
order by e.due_at, e.seq
limit ?4
