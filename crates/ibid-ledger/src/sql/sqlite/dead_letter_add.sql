-- Adds a dead letter of a ledger, once, first step: the part that never changes. No row comes back if it exists already, also if
-- an operator has discarded it: the reaper keeps a letter's name. dead_letter_state_add.sql follows.
insert into ibid_effect_call (record, birth, name, owes, letter, downstream_key, rules, payload)
values (?1, ?2, ?3, 0, 1, ?4, ?5, ?6)
on conflict (record, birth, name) do nothing
returning seq
