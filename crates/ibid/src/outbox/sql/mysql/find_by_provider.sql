-- Finds the effect of kind ?3 that has the provider's id ?2; two rows mean that the id is ambiguous. effect.sql follows.
with e as (
  select x.*
  from ibid_effect x force index (ibid_effect_provider)
  where x.provider_id = ?2 and x.kind = ?3
  limit 2
)
