-- Lists effects after the number $2, $3 at most, by record $4, state $5 and dead letters $6. effect.sql follows.
-- Each order has a part with its own index. The parameters alone select the one part that runs; the server skips the others.
-- The part of one state compares rows: with an equality the server may walk the primary key and filter.
with t as materialized (select coalesce($1::int8, (extract(epoch from statement_timestamp()) * 1000000)::int8) as now),
     listed as materialized (
       (
         select e.seq
         from ibid_effect_call c
         cross join lateral (select x.* from ibid_effect x where x.seq = c.seq offset 0) e
         where $4::bytea is not null
           and c.record = encode($4::bytea, 'hex')::uuid and e.seq > $2 and ($5::int8 is null or e.state = $5::int8::int2) and (e.dead_letter or not $6::boolean)
         order by e.seq
         limit $3
       )
       union all
       (
         select e.seq
         from ibid_effect e
         where $4::bytea is null and $6::boolean and e.dead_letter and e.seq > $2
         order by e.seq
         limit $3
       )
       union all
       (
         select e.seq
         from ibid_effect e
         where $4::bytea is null and not $6::boolean and $5::int8 is not null
           and (e.state, e.seq) > ($5::int8::int2, $2::int8) and e.state <= $5::int8::int2
         order by e.state, e.seq
         limit $3
       )
       union all
       (
         select e.seq
         from ibid_effect e
         where $4::bytea is null and not $6::boolean and $5::int8 is null and e.seq > $2
         order by e.seq
         limit $3
       )
     ),
     e as (
       select e.*
       from ibid_effect e
       where e.seq = any (array(select l.seq from listed l))
     )
