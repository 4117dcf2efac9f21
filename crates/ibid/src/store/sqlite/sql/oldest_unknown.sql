-- When the record in state ?1 that ran longest ago did so, among the ?2 that are due first; null: there is none.
select min(at)
from (
  select ifnull(ran_at, created_at) as at
  from ibid_record indexed by ibid_record_open
  where watch_at is not null and state = ?1
  order by watch_at
  limit ?2
)
