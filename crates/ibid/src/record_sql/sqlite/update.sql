-- Replace a record that is at the version (?30, ?31), with ?32 only if it is also due. Returns now; no row: not hit.
-- Instants ?11 to ?13: 0 keeps, 1 sets to now (?28), 2 clears. Response ?25: 0 keeps it within a generation, 1 sets, 2 clears.
-- Tenant and key never change within one id, but the reaper may have blanked them. A row that is not ordered yet (due, and
-- not watched) gets no reap_at: the ordering of new rows comes by later and covers it with a range. ?29 says whether the
-- record is unfinished. ?17 is PostgreSQL's.
update ibid_record set
  count = ?2, nonce = ?3, birth = ?4, owner = ?5, attempt = ?6, state = ?7, flags = ?8, policy = ?9, point = ?10,
  created_at = iif(?11 = 0, created_at, ?28),
  ran_at = case ?12 when 0 then ran_at when 1 then ?28 end,
  completed_at = case ?13 when 0 then completed_at when 1 then ?28 end,
  due_at = ?28 + ?14, expires_at = ?28 + ?15, purge_at = ?28 + ?16,
  watch_at = iif(?14 is null, iif(?29, 9223372036854775807, null), ?28 + ?14),
  reap_at = iif(watch_at is null and due_at is not null, null, ?28 + min(?16, coalesce(?15, ?16))),
  fingerprint = ?18, tenant = ?19, method = ?20, path = ?21, key = ?22, note = ?23, status = ?24,
  lines = iif(?25 = 0 and birth = ?4, lines, ?26),
  sealed_by = iif(?25 = 0 and birth = ?4, sealed_by, null),
  body = iif(?25 = 0 and birth = ?4, body, ?27)
where id = ?1 and count = ?30 and nonce = ?31 and (not ?32 or due_at <= ?28)
returning ?28
