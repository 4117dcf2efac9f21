-- Loads the effects whose numbers are in the JSON array ?2. effect.sql follows.
with e as (
  select x.*
  from json_table(convert(?2 using utf8mb4), '$[*]' columns (seq bigint path '$')) j
  straight_join ibid_effect x force index (primary) on x.seq = j.seq
)
