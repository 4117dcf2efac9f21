-- One step of the reaper over effects: of the next $3 after the number $1, removes those that ended longer than $2 ago and
-- whose record is gone. Of a letter only payload and result go: its name stays, so that it is not written again.
-- Numbers are in the order of time, so behind an effect that is younger than that nothing is old enough. A step that a crash
-- loses is repeated, so it does not wait for the disk.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
  where set_config('synchronous_commit', 'off', true) is not null
),
looked as materialized (
  select e.seq, e.created_at, c.letter,
         e.done_at <= (select now from clock) - $2::int8
           and (select true from ibid_record r where r.id = c.record and r.birth = c.birth limit 1) is null as goes
  from (
    select x.seq, x.created_at, x.done_at
    from ibid_effect x
    where x.seq > $1::int8
    order by x.seq
    limit $3::int8
  ) e
  cross join lateral (select x.letter, x.record, x.birth from ibid_effect_call x where x.seq = e.seq offset 0) c
),
removed as (
  delete from ibid_effect e
  where e.seq = any (array(select l.seq from looked l where l.goes and not l.letter)) and e.done_at is not null
  returning e.seq
),
calls as (
  delete from ibid_effect_call c where c.seq = any (array(select x.seq from removed x))
),
letters as (
  update ibid_effect_call c set payload = null, result = null
  where c.seq = any (array(select l.seq from looked l where l.goes and l.letter))
    and (c.payload is not null or c.result is not null)
)
select (select count(*) from removed), (select max(seq) from looked), (select count(*) from looked),
       (select max(created_at) from looked) <= (select now from clock) - $2::int8
