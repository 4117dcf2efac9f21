-- Adds a dead letter of a ledger, once, first step: the part that never changes. If it exists already, also if an operator has
-- discarded it, the last number becomes 0 (last_number.sql): the reaper keeps a letter's name. dead_letter_state_add.sql follows.
insert into ibid_effect_call (record, birth, name, owes, letter, downstream_key, rules, payload)
values (?1, ?2, ?3, 0, 1, ?4, ?5, ?6)
on duplicate key update owes = if(last_insert_id(seq * 0) = 0, owes, owes)
