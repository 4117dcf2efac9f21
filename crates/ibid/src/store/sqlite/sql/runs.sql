-- Records that go last among those that go by ?1: of those that are kept as long, they completed last.
select policy, state, flags, ran_at, completed_at, method, path, note
from ibid_record indexed by ibid_record_purge
where purge_at is not null and purge_at <= ?1
order by purge_at desc
limit ?2
