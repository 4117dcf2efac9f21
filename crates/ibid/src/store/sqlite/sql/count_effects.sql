-- Counts the effects that are dead letters, by their index: there are few.
select count(*) from ibid_effect indexed by ibid_effect_dead where dead_letter = 1
