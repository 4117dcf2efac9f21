-- Records whose answers go last among those that are kept for $1 microseconds after they were begun: they were begun last.
select policy, state, flags, ran_at, completed_at, method, path, note
from ibid_record
where reap_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8 + $1
  and purge_at is not null
  and not bare
order by reap_at desc
limit $2
