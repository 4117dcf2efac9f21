-- The next ?2 rows after ?1: the last of them, how many, how many are not watched yet, and the first reap instant among
-- those that are not in the reaper's index.
select max(row), count(*), total(is_new), min(at)
from (
  select row, watch_at is null and due_at is not null as is_new, iif(reap_at is null, iif(flags & 128, purge_at, min(purge_at, coalesce(expires_at, purge_at))), null) as at
  from ibid_record where row > ?1 order by row limit ?2
)
