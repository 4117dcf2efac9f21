-- Returns the first record that a step of the reaper from the instant $1 on would reap, without those of $2, and its instant.
select r.id, r.reap_at
from ibid_record r
where r.reap_at >= $1::int8
  and r.reap_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8
  and r.id <> all ($2::uuid[])
  and r.purge_at is not null
  and case when r.flags & 128 <> 0 then r.purge_at else least(r.expires_at, r.purge_at) end
      <= (extract(epoch from statement_timestamp()) * 1000000)::int8
  and r.flags & 1 = 0
  and (
    select true from ibid_effect_call c
    where c.record = r.id and (select e.done_at is null from ibid_effect e where e.seq = c.seq)
    limit 1
  ) is null
order by r.reap_at
limit 1
for update of r skip locked
