-- The first reap instant of rows from ?1 to ?2 that are not in the reaper's index.
select min(iif(flags & 128, purge_at, min(purge_at, coalesce(expires_at, purge_at))))
from ibid_record where row >= ?1 and row <= ?2 and reap_at is null and purge_at is not null
