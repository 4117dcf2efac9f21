-- Unblocks the first open effect of the aggregate ?2 of the tenant ?1.
update ibid_effect set blocked = 0
where blocked = 1 and seq = (
  select x.seq
  from ibid_effect x
  where x.tenant = ?1 and x.aggregate = ?2 and x.done_at is null
  order by x.seq
  limit 1
)
