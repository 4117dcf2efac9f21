-- Open records by state, at most ?1 of each, out of their index. It finds the states one by one, also those that it does not know.
with recursive known (state) as (
  select (select min(state) from ibid_record indexed by ibid_record_open where watch_at is not null)
  union all
  select (select min(r.state) from ibid_record r indexed by ibid_record_open where r.watch_at is not null and r.state > k.state)
  from known k
  where k.state is not null
)
select k.state,
       (select count(*) from (
         select 1 from ibid_record r indexed by ibid_record_open where r.watch_at is not null and r.state = k.state limit ?1
       ))
from known k
where k.state is not null
