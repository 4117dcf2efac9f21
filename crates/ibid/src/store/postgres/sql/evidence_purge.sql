-- Deletes evidence whose time is over, oldest first. A locked row waits for the next time. A step that a crash loses is repeated,
-- so it does not wait for the disk.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
  where set_config('synchronous_commit', 'off', true) is not null
)
delete from ibid_evidence
where seq = any (array(
  select e.seq from ibid_evidence e
  where e.purge_at <= (select now from clock)
  order by e.purge_at
  limit $1::int8
  for update skip locked
))
returning 1
