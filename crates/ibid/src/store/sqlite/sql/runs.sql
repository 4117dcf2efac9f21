-- Records whose answers go last among those that go by ?1: of those that are kept as long, they completed last.
select policy, state, flags, ran_at, completed_at, method, path, note
from ibid_record indexed by ibid_record_reap
where purge_at is not null
  and iif(bare, purge_at, min(coalesce(expires_at, purge_at), purge_at)) <= ?1
  and not bare
order by iif(bare, purge_at, min(coalesce(expires_at, purge_at), purge_at)) desc
limit ?2
