-- Replaces a record at the version ?30, ?31, which version_lock.sql has locked. ?1 to ?27 are those of `RecordColumns::params`;
-- ?17, ?28 and ?29 are PostgreSQL's. Where ?32 is set, the record must also be due, and lock_due.sql has locked it.
--
-- The marks ?11 to ?13 keep an instant (0), set it to now (1) or clear it (2). The response is kept (0), set (1) or cleared (2)
-- by ?25; a row that gets another birth keeps none. MySQL assigns from left to right, and an expression sees the values
-- before it, so `birth` comes last.
update ibid_record set
  count = ?2, nonce = ?3, owner = ?5, attempt = ?6, state = ?7, flags = ?8, policy = ?9, point = ?10,
  written_at = timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)),
  created_at = if(?11 = 0, created_at, timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))),
  ran_at = case ?12 when 0 then ran_at when 1 then timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) end,
  completed_at = case ?13 when 0 then completed_at when 1 then timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) end,
  due_at = timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + ?14,
  expires_at = timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + ?15,
  purge_at = timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + ?16,
  reap_at = if(?8 & 1, 9223372036854775807,
               timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + least(?16, coalesce(?15, ?16))),
  fingerprint = ?18, tenant = ?19, method = ?20, path = ?21, `key` = ?22, note = ?23, status = ?24,
  `lines` = case when ?25 = 1 then ?26 when ?25 = 0 and birth = ?4 then `lines` end,
  body = case when ?25 = 1 then ?27 when ?25 = 0 and birth = ?4 then body end,
  sealed_by = case when ?25 = 0 and birth = ?4 then sealed_by end,
  birth = ?4
where id = ?1 and count = ?30 and nonce = ?31
  and (not ?32 or due_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)))
