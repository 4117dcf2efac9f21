-- Add a dead letter of a ledger, once. No row back: it exists already, or an operator has discarded it.
insert into ibid_effect (
  record, birth, name, count, nonce, kind, state, open, tries, lease_us, created_at,
  downstream_key, rules, owes, tenant, payload, last_error
) values (
  ?1, ?3, ?4, 1, ?5, ?6, ?7, 1, 0, ?8, ?2,
  ?9, ?10, 0, ?11, ?12, ?13
)
on conflict (record, birth, name) do nothing
returning seq
