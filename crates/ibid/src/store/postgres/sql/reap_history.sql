-- Takes one step of the reaper over the history: of the next $3 lines behind $1 it deletes those that are older than $2 and whose
-- record is gone. Lines are in the order of time, so behind a younger line there is no older one. A step that a crash loses is
-- repeated, so it does not wait for the disk.
with looked as materialized (
  select e.seq, e.at,
         e.at <= (extract(epoch from statement_timestamp()) * 1000000)::int8 - $2::int8
           and (select true from ibid_record r where r.id = e.id limit 1) is null as goes
  from ibid_event e
  where e.seq > $1::int8 and set_config('synchronous_commit', 'off', true) is not null
  order by e.seq
  limit $3::int8
),
removed as (
  delete from ibid_event e where e.seq = any (array(select seq from looked where goes))
  returning 1
)
select (select count(*) from removed), (select max(seq) from looked), (select count(*) from looked),
       (select max(at) from looked) <= (extract(epoch from statement_timestamp()) * 1000000)::int8 - $2::int8
