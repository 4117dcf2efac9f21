-- Finds the effect that is called under the key ?2; two rows would mean that two calls share a key. effect.sql follows.
with e as (
  select x.*
  from (select k.seq from ibid_effect_call k where k.downstream_key = ?2 limit 2) k
  straight_join ibid_effect x force index (primary) on x.seq = k.seq
)
