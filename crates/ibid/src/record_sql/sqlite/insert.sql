-- Insert a record unless its id exists. Returns created_at; no row: a record is there.
-- A record with a due instant stays unordered until the writer orders new rows; one that is open and never due is watched at
-- once. ?29 says whether it is unfinished. ?11 and ?17 are not needed here.
insert into ibid_record (
  id, count, nonce, birth, owner, attempt, state, flags, policy, point,
  created_at, ran_at, completed_at, due_at, expires_at, purge_at, watch_at,
  fingerprint, tenant, method, path, key, note, status, lines, body
) values (
  ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10,
  ?28, iif(?12 = 1, ?28, null), iif(?13 = 1, ?28, null), ?28 + ?14, ?28 + ?15, ?28 + ?16,
  iif(?14 is null and ?29, 9223372036854775807, null),
  ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?26, ?27
)
on conflict (id) do nothing
returning created_at
