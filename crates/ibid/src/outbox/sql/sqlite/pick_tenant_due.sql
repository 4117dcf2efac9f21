-- Picks up to ?5 due effects of the tenant ?4 and the kind ?3 in the state ?2, the oldest first, for a claim. It reads no effect
-- of another tenant.
select x.seq, x.tenant, x.due_at
from ibid_effect x indexed by ibid_effect_tenant
where x.kind = ?3 and x.state = ?2 and x.tenant = ?4 and x.blocked = 0 and x.due_at <= ?1
order by x.due_at
limit ?5
