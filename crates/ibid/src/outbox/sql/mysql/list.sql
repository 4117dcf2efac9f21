-- Lists effects after the number ?2, ?3 at most, by record ?4, state ?5 and dead letters ?6. effect.sql follows.
-- Each order has a part with its own index. The parameters alone select the one part that runs; the others read nothing.
with listed as (
  (
    select x.seq
    from ibid_effect_call k force index (ibid_effect_call_once)
    straight_join ibid_effect x force index (primary) on x.seq = k.seq
    where ?4 is not null
      and k.record = ?4 and x.seq > ?2 and (?5 is null or x.state = ?5) and (x.dead_letter = 1 or not ?6)
    order by x.seq
    limit ?3
  )
  union all
  (
    select x.seq
    from ibid_effect x force index (ibid_effect_dead)
    where ?4 is null and ?6 and x.dead_letter = 1 and x.seq > ?2
    order by x.seq
    limit ?3
  )
  union all
  (
    select x.seq
    from ibid_effect x force index (ibid_effect_state)
    where ?4 is null and not ?6 and ?5 is not null and x.state = ?5 and x.seq > ?2
    order by x.seq
    limit ?3
  )
  union all
  (
    select x.seq
    from ibid_effect x force index (primary)
    where ?4 is null and not ?6 and ?5 is null and x.seq > ?2
    order by x.seq
    limit ?3
  )
),
e as (
  select x.*
  from listed l
  straight_join ibid_effect x force index (primary) on x.seq = l.seq
)
