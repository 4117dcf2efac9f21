-- Lists effects after the number ?2, ?3 at most, by record ?4, state ?5 and dead letters ?6. effect.sql follows.
-- Each order has a part with its own index. The parameters alone select the one part that runs; the others read nothing.
with listed as materialized (
  select * from (
    select x.seq
    from ibid_effect_call k
    cross join ibid_effect x
    where ?4 is not null
      and k.record = ?4 and x.seq = k.seq and x.seq > ?2 and (?5 is null or x.state = ?5) and (x.dead_letter = 1 or not ?6)
    order by x.seq
    limit ?3
  )
  union all
  select * from (
    select x.seq
    from ibid_effect x
    where ?4 is null and ?6 and x.dead_letter = 1 and x.seq > ?2
    order by x.seq
    limit ?3
  )
  union all
  select * from (
    select x.seq
    from ibid_effect x indexed by ibid_effect_state
    where ?4 is null and not ?6 and ?5 is not null and x.state = ?5 and x.seq > ?2
    order by x.seq
    limit ?3
  )
  union all
  select * from (
    select x.seq
    from ibid_effect x
    where ?4 is null and not ?6 and ?5 is null and x.seq > ?2
    order by x.seq
    limit ?3
  )
),
e as (
  select x.*
  from ibid_effect x
  where x.seq in (select l.seq from listed l)
)
