-- Records that go last among those that are kept for $1 microseconds after their completion: they completed last.
select policy, state, flags, ran_at, completed_at, method, path, note
from ibid_record
where purge_at is not null and purge_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8 + $1
order by purge_at desc
limit $2
