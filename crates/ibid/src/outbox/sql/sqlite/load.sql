-- Loads the effects whose numbers are in the JSON array ?2. effect.sql follows.
with e as (
  select x.*
  from ibid_effect x
  where x.seq in (select n.value from json_each(?2) n)
)
