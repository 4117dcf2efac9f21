-- Enqueues an effect in the caller's transaction, first step: the part that never changes. No row comes back if the record
-- already has an effect of that name. effect_add.sql and turn_add.sql follow.
insert into ibid_effect_call (record, birth, name, owes, letter, downstream_key, rules, trace, payload)
values (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7, ?8)
on conflict (record, birth, name) do nothing
returning seq
