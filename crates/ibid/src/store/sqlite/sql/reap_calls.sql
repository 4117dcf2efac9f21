-- Removes the calls after the number ?1 up to ?2 whose effect was removed.
delete from ibid_effect_call
where seq > ?1 and seq <= ?2 and not exists (select 1 from ibid_effect e where e.seq = ibid_effect_call.seq)
