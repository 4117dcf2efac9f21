-- Removes the effects after the number ?1 up to ?2 that ended by ?3 and whose record is gone, but no letters (reap_letters.sql).
-- reap_calls.sql follows.
delete from ibid_effect
where seq > ?1 and seq <= ?2 and done_at <= ?3
  and exists (
    select 1 from ibid_effect_call c
    where c.seq = ibid_effect.seq and c.letter = 0
      and not exists (select 1 from ibid_record r where r.id = c.record and r.birth = c.birth)
  )
