-- Counts the effects that reap_effects.sql would remove now.
select 0::int8, count(*)
from ibid_effect e
join ibid_effect_call c on c.seq = e.seq
where e.done_at <= (extract(epoch from statement_timestamp()) * 1000000)::int8 - $1::int8
  and not c.letter
  and (select true from ibid_record r where r.id = c.record and r.birth = c.birth limit 1) is null
