-- Replace a record inside the caller's transaction, at the version that was read. No row back means that it is
-- somebody else's by now. Marks (?16 to ?18): 0 keeps the instant, 1 sets it to now (?2), 2 clears it. ?28 is
-- PostgreSQL's.
update ibid_record set
  count = ?6, nonce = ?7, birth = ?8, owner = ?9, attempt = ?10, lease_us = ?11, state = ?12, flags = ?13,
  policy = ?14, point = ?15,
  created_at = iif(?16 = 0, created_at, ?2),
  ran_at = case ?17 when 0 then ran_at when 1 then ?2 end,
  completed_at = case ?18 when 0 then completed_at when 1 then ?2 end,
  due_at = ?2 + ?19, expires_at = ?2 + ?20, purge_at = ?2 + ?21,
  fingerprint = ?22, tenant = ?26, method = ?23, path = ?24, key = ?27, note = ?25, bare = 0
where id = ?1 and count = ?3 and nonce = ?4 and (not ?5 or due_at <= ?2) and ?28 = ?28
returning ?2
