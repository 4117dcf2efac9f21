-- Replace a record unless somebody has since; with ?4 only if it is also due by then. No row changed means
-- Conflict. Marks (?16 to ?18): 0 keeps the instant, 1 sets it to now (?15), 2 clears it. Tenant and key are
-- part of the id and never change, but the reaper may have blanked them; under tenant scope the operation may change, with
-- a new generation.
update ibid_record set
  count = ?5, nonce = ?6, birth = ?7, owner = ?8, attempt = ?9, lease_us = ?10, state = ?11, flags = ?12,
  policy = ?13, point = ?14,
  created_at = iif(?16 = 0, created_at, ?15),
  ran_at = case ?17 when 0 then ran_at when 1 then ?15 end,
  completed_at = case ?18 when 0 then completed_at when 1 then ?15 end,
  due_at = ?19, expires_at = ?20, purge_at = ?21,
  fingerprint = ?22, tenant = ?26, method = ?23, path = ?24, key = ?27, note = ?25, bare = 0
where id = ?1 and count = ?2 and nonce = ?3 and (?4 is null or due_at <= ?4)
