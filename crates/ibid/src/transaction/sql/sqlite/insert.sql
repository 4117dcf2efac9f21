-- Reserve a record inside the caller's transaction. No row back means that somebody else's is there. ?24 is
-- PostgreSQL's.
insert into ibid_record (
  id, count, nonce, birth, owner, attempt, lease_us, state, flags, policy, point,
  created_at, ran_at, completed_at, due_at, expires_at, purge_at,
  fingerprint, tenant, method, path, key, note
)
select
  ?1, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12,
  ?2, iif(?13, ?2, null), iif(?14, ?2, null), ?2 + ?15, ?2 + ?16, ?2 + ?17,
  ?18, ?19, ?20, ?21, ?22, ?23
where ?24 = ?24
on conflict (id) do nothing
returning created_at
