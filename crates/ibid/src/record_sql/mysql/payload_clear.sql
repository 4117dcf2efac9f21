-- Drops payload and result of the ended effects of the record ?1, as the reaper does: they are as personal as its response, and a
-- new generation replaces that. Without the indexes a small table would be read as a whole, and its rows locked.
update ibid_effect_call c force index (ibid_effect_call_once)
straight_join ibid_effect e force index (primary) on e.seq = c.seq
set c.payload = null, c.result = null
where c.record = ?1 and (c.payload is not null or c.result is not null) and e.done_at is not null
