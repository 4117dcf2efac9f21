-- One step of the reaper over effects: of the next $3 after the place $1 go those that ended longer than $2 ago and whose
-- record is gone. Places are in the order of time, so behind one that was made since then nothing can be old enough.
with looked as materialized (
  select e.seq, e.created_at,
         not e.open
           and coalesce(e.done_at, e.created_at)
               <= (extract(epoch from statement_timestamp()) * 1000000)::int8 - $2::int8
           and (select true from ibid_record r where r.id = e.record and r.birth = e.birth limit 1) is null as goes
  from ibid_effect e
  where e.seq > $1::int8
  order by e.seq
  limit $3::int8
),
removed as (
  delete from ibid_effect e where e.seq = any (array(select seq from looked where goes)) and not e.open
  returning 1
)
select (select count(*) from removed), (select max(seq) from looked), (select count(*) from looked),
       (select max(created_at) from looked) <= (extract(epoch from statement_timestamp()) * 1000000)::int8 - $2::int8
