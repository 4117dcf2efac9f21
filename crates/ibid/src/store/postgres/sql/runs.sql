-- Records whose answers go last among those that are kept for $1 microseconds after their completion: they completed last.
select policy, state, flags, ran_at, completed_at, method, path, note
from ibid_record
where purge_at is not null
  and case when bare then purge_at else least(expires_at, purge_at) end
      <= (extract(epoch from statement_timestamp()) * 1000000)::int8 + $1
  and not bare
order by case when bare then purge_at else least(expires_at, purge_at) end desc
limit $2
