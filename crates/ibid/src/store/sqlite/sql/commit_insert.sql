-- Begin a record where no row stands. No row changed means Conflict.
insert into ibid_record (
  id, count, nonce, birth, owner, attempt, lease_us, state, flags, policy, point,
  created_at, ran_at, completed_at, due_at, expires_at, purge_at,
  fingerprint, tenant, method, path, key, note
) values (
  ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
  ?12, ?13, ?14, ?15, ?16, ?17,
  ?18, ?19, ?20, ?21, ?22, ?23
)
on conflict (id) do nothing
