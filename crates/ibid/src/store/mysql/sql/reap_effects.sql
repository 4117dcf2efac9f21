-- Looks at the next ?2 effects after the number ?1. One that ended longer than ?3 ago and whose record is gone goes (1); of a
-- letter only payload and result go (2): its name stays, so that it is not written again. Numbers are in the order of time,
-- so behind an effect that is younger than that nothing is old enough.
select e.seq,
       if(e.done_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) - ?3
            and not exists (select 1 from ibid_record r where r.id = c.record and r.birth = c.birth),
          if(c.letter, if(c.payload is null and c.result is null, 0, 2), 1), 0),
       e.created_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) - ?3
from ibid_effect e force index (primary)
straight_join ibid_effect_call c force index (primary) on c.seq = e.seq
where e.seq > ?1
order by e.seq
limit ?2
