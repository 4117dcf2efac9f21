-- Drops payload and result of the effects whose numbers are in the JSON array ?1, as the reaper does: they are as personal as the
-- response of their record, and a new generation replaces that.
update json_table(convert(?1 using utf8mb4), '$[*]' columns (seq bigint path '$')) x
straight_join ibid_effect_call c force index (primary) on c.seq = x.seq
set c.payload = null, c.result = null
