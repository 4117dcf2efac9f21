-- Deletes the turns whose numbers are in the JSON array ?1. Each is looked up by its number: a scan would wait for turns that
-- another look has locked.
delete t
from json_table(convert(?1 using utf8mb4), '$[*]' columns (id bigint path '$')) j
straight_join ibid_effect_turn t force index (primary) on t.id = j.id
