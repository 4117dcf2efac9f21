-- Counts the effects that reap_effects.sql would remove now.
select 0, count(*)
from ibid_effect e
join ibid_effect_call c on c.seq = e.seq
where e.done_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) - ?1 and not c.letter
  and not exists (select 1 from ibid_record r where r.id = c.record and r.birth = c.birth)
