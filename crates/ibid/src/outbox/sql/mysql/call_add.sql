-- Enqueues an effect in the caller's transaction, second step: the part that never changes. If the record already has an effect
-- of that name, the last number becomes 0 (last_number.sql); the number of affected rows would depend on the client.
-- effect_add.sql and turn_add.sql follow.
insert into ibid_effect_call (record, birth, name, owes, letter, downstream_key, rules, trace, payload)
values (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7, ?8)
on duplicate key update owes = if(last_insert_id(seq * 0) = 0, owes, owes)
