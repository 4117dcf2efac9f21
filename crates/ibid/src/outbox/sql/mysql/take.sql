-- Claims the effects in the JSON array ?1, which this transaction has picked and locked: they go to the state ?2 for their lease.
-- A claim that counts (?4) is a try, and the first sets the instant of the first call.
update json_table(convert(?1 using utf8mb4), '$[*]' columns (seq bigint path '$')) j
straight_join ibid_effect e force index (primary) on e.seq = j.seq
set e.state = ?2, e.count = e.count + 1, e.nonce = ?3, e.tries = e.tries + ?4,
    e.called_at = if(?4, coalesce(e.called_at, timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))), e.called_at),
    e.due_at = timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + e.lease_us,
    e.written_at = timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
