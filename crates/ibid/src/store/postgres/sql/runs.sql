-- Returns the records begun last among those that are kept for $1 microseconds: their responses expire last.
select policy, state, flags, ran_at, completed_at, method, path, note
from ibid_record
where reap_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8 + $1::int8
  and purge_at is not null
  and flags & 128 = 0
order by reap_at desc
limit $2::int8
