-- Deletes evidence whose time is over, oldest first. A locked row waits for the next time.
delete from ibid_evidence
where seq = any (array(
  select e.seq from ibid_evidence e
  where e.purge_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8
  order by e.purge_at
  limit $1::int8
  for update skip locked
))
returning 1
