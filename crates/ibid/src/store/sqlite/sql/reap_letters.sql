-- Drops payload and result of letters after the number ?1 up to ?2 that were discarded by ?3. The name of a letter stays, so that
-- it is not written again.
update ibid_effect_call set payload = null, result = null
where seq > ?1 and seq <= ?2 and letter = 1 and (payload is not null or result is not null)
  and (select e.done_at from ibid_effect e where e.seq = ibid_effect_call.seq) <= ?3
