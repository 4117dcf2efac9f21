-- Counts the effects that ended by ?1 and that reap_effects.sql would remove.
select 0, count(*)
from ibid_effect e
join ibid_effect_call c on c.seq = e.seq
where e.done_at <= ?1 and c.letter = 0
  and not exists (select 1 from ibid_record r where r.id = c.record and r.birth = c.birth)
