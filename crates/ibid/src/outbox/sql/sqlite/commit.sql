-- Replaces the changing part of an effect at the version that was read. No row comes back if another process changed it since.
--
-- The marks ?11 (first call) and ?13 (end of the last call): 0 keeps the instant, 1 sets it to now (?1), 2 clears it. The
-- provider's id belongs to the call, so it goes when its instant is cleared, like the result (result_set.sql).
update ibid_effect set
  count = ?5, nonce = ?6, state = ?7, dead_letter = ?8, tries = ?9, due_at = ?1 + ?10,
  called_at = case ?11 when 0 then called_at when 1 then ?1 end,
  ended_at = case ?13 when 0 then ended_at when 1 then ?1 end,
  done_at = iif(?12, ?1, done_at),
  provider_id = iif(?11 = 2, ?14, coalesce(?14, provider_id)), last_error = coalesce(?15, last_error)
where seq = ?2 and count = ?3 and nonce = ?4
returning ?1
