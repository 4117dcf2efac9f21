-- Replace what is kept of an effect, at the version that was read. No row back means that it is somebody else's by now.
-- The marks ?11 and ?16, of the instant of the first call and of that of the last one's end: 0 keeps it, 1 sets it to now
-- (?1), 2 clears it. Result and provider's id are of the call: they go with the instant of the first. ?17 is
-- PostgreSQL's.
update ibid_effect set
  count = ?5, nonce = ?6, state = ?7, open = ?8, tries = ?9, due_at = ?1 + ?10,
  called_at = case ?11 when 0 then called_at when 1 then ?1 end,
  ended_at = case ?16 when 0 then ended_at when 1 then ?1 end,
  done_at = iif(?12, ?1, done_at),
  result = iif(?11 = 2, ?13, coalesce(?13, result)),
  provider_id = iif(?11 = 2, ?14, coalesce(?14, provider_id)), last_error = coalesce(?15, last_error)
where seq = ?2 and count = ?3 and nonce = ?4 and ?17 = ?17
returning ?1
