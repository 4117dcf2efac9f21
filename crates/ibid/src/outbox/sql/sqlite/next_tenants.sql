-- Finds up to ?5 tenants after ?4 with effects of the kind ?3 in the state ?2, and whether one is due.
--
-- Each tenant costs one step into the index, to its oldest effect, however many it has.
with recursive walk (tenant, due_at, number) as (
  select * from (
    select x.tenant, x.due_at, 1
    from ibid_effect x indexed by ibid_effect_tenant
    where x.kind = ?3 and x.state = ?2 and x.tenant > ?4 and x.blocked = 0 and x.due_at is not null
    order by x.tenant, x.due_at
    limit 1
  )
  union all
  select n.tenant, n.due_at, w.number + 1
  from walk w
  cross join ibid_effect n
  where w.number < ?5 and n.seq = (
    select x.seq
    from ibid_effect x indexed by ibid_effect_tenant
    where x.kind = ?3 and x.state = ?2 and x.tenant > w.tenant and x.blocked = 0 and x.due_at is not null
    order by x.tenant, x.due_at
    limit 1
  )
)
select tenant, due_at <= ?1 from walk order by number
