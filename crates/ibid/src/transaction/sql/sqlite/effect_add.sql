-- Enqueue an effect in the caller's transaction. No row back means that the record has one of that name.
insert into ibid_effect (
  record, birth, name, count, nonce, kind, state, open, tries, due_at, lease_us, created_at, aggregate,
  downstream_key, rules, owes, tenant, trace, payload
) values (
  ?1, ?3, ?4, 1, ?5, ?6, ?7, ?8, 0, ?2 + ?9, ?10, ?2, ?12,
  ?11, ?13, ?14, ?15, ?16, ?17
)
on conflict (record, birth, name) do nothing
returning seq
