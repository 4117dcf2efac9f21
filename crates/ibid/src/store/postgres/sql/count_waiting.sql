-- Counts what an index has, at most $5 of each: records in the states $1 (pending), $2 (retryable) and $3 (unknown), records in
-- the state $4 (in progress) whose first lease was renewed or has ended, and dead letters. Also returns since when the unknown
-- record that ran longest ago waits, and now.
select (select count(*) from (
         select from ibid_record r where r.watch_state = $1::int8::int2 and r.watch_at is not null limit $5::int8) x),
       (select count(*) from (
         select from ibid_record r where r.watch_state = $2::int8::int2 and r.watch_at is not null limit $5::int8) x),
       u.rows,
       (select count(*) from (
         select from ibid_record r where r.watch_state = $4::int8::int2 and r.watch_at is not null limit $5::int8) x),
       (select count(*) from (select from ibid_record r where r.flags & 1 <> 0 limit $5::int8) x),
       u.oldest,
       (extract(epoch from statement_timestamp()) * 1000000)::int8
from (
  select count(*) as rows, min(x.at) as oldest
  from (
    select coalesce(r.ran_at, r.created_at) as at
    from ibid_record r
    where r.watch_state = $3::int8::int2 and r.watch_at is not null
    limit $5::int8
  ) x
) u
