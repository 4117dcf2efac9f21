-- How many records would become tombstones at ?1, and how many would go.
select count(*) filter (where r.purge_at > ?1), count(*) filter (where r.purge_at <= ?1)
from ibid_record r
where r.purge_at is not null
  and iif(r.bare, r.purge_at, min(coalesce(r.expires_at, r.purge_at), r.purge_at)) <= ?1
  and r.flags & ?2 = 0
  and not exists (
    select 1 from ibid_effect_call c where c.record = r.id and (select e.done_at is null from ibid_effect e where e.seq = c.seq)
  )
