-- Counts the effects that are dead letters, at most ?1, by their index.
select count(*) from (select 1 from ibid_effect indexed by ibid_effect_dead where dead_letter = 1 limit ?1)
