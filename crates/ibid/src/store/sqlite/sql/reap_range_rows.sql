-- Rows from ?1 to ?2 that the reaper comes for by ?3 and that are not in its index, at most ?4: whether they may go or be stripped
-- at all (no dead letter, no open effect), and whether they go.
select r.row, iif(r.flags & 128, r.purge_at, min(r.purge_at, coalesce(r.expires_at, r.purge_at))),
       r.flags & 1 = 0 and not exists (
         select 1 from ibid_effect_call c
         where c.record = r.id and (select e.done_at is null from ibid_effect e where e.seq = c.seq)
       ),
       r.purge_at <= ?3
from ibid_record r
where r.row >= ?1 and r.row <= ?2 and r.reap_at is null and r.purge_at is not null
  and iif(r.flags & 128, r.purge_at, min(r.purge_at, coalesce(r.expires_at, r.purge_at))) <= ?3
order by r.row
limit ?4
