-- Finds the first open effect of the aggregate ?2 of the tenant ?1, by one step into its index.
select x.seq, x.blocked
from ibid_effect x force index (ibid_effect_order)
where x.tenant = ?1 and x.aggregate = ?2 and x.done_at is null
order by x.seq
limit 1
