-- Counts records that would become tombstones now, and those that would be deleted.
select count(*) filter (where r.purge_at > (extract(epoch from statement_timestamp()) * 1000000)::int8),
       count(*) filter (where r.purge_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8)
from ibid_record r
where r.reap_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8
  and r.purge_at is not null
  and case when r.flags & 128 <> 0 then r.purge_at else least(r.expires_at, r.purge_at) end
      <= (extract(epoch from statement_timestamp()) * 1000000)::int8
  and r.flags & 1 = 0
  and (
    select true from ibid_effect_call c
    where c.record = r.id and (select e.done_at is null from ibid_effect e where e.seq = c.seq)
    limit 1
  ) is null
