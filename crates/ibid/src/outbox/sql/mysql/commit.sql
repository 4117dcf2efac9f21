-- Replaces the changing part of an effect at the version that was read. version_lock.sql has locked it; written.sql returns the
-- instant of the write.
--
-- The marks ?11 (first call) and ?13 (end of the last call): 0 keeps the instant, 1 sets it to now, 2 clears it. The provider's
-- id belongs to the call, so it goes when its instant is cleared, like the result (result_set.sql). ?1 is SQLite's.
update ibid_effect set
  count = ?5, nonce = ?6, state = ?7, dead_letter = ?8, tries = ?9,
  written_at = timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)),
  due_at = timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + ?10,
  called_at = case ?11 when 0 then called_at when 1 then timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) end,
  ended_at = case ?13 when 0 then ended_at when 1 then timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) end,
  done_at = if(?12, timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)), done_at),
  provider_id = if(?11 = 2, ?14, coalesce(?14, provider_id)), last_error = coalesce(?15, last_error)
where seq = ?2 and count = ?3 and nonce = ?4
