-- Drops payload and result of the ended effects of the record $1, as the reaper does: they are as personal as its response, and a
-- new generation replaces that.
update ibid_effect_call c set payload = null, result = null
where c.record = encode($1::bytea, 'hex')::uuid and (c.payload is not null or c.result is not null)
  and (select e.done_at is not null from ibid_effect e where e.seq = c.seq)
