-- Adds a dead letter of a ledger, second step: the part that changes. ?2 is SQLite's.
insert into ibid_effect (
  seq, nonce, lease_us, created_at, written_at, count, tries, state, blocked, dead_letter, tenant, kind, last_error
) values (
  ?1, ?3, ?6, timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)),
  timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)), 1, 0, ?5, 0, 1, ?7, ?4, ?8
)
