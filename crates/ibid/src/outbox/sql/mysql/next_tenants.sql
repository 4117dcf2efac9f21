-- Finds the first tenant after ?4 with an effect of the kind ?3 in the state ?2, by one step into the index, and whether one may
-- be due. It takes one step at a time (?5 is 1): the server would read all effects of a tenant to find the next one if the
-- tenant were a column and not a parameter. A null of `due_at` is a dead letter and says nothing about the others. ?1 is
-- SQLite's.
select x.tenant, x.due_at is null or x.due_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
from ibid_effect x force index (ibid_effect_tenant)
where x.kind = ?3 and x.state = ?2 and x.blocked = 0 and x.tenant > ?4
order by x.tenant, x.due_at
limit ?5
