-- Enqueues an effect, third step: the part that changes. An effect of an aggregate starts blocked, and the next look of a worker
-- decides whether it is the first (turn_add.sql, turns.sql). ?2 is SQLite's.
insert into ibid_effect (
  seq, nonce, due_at, lease_us, created_at, written_at, count, tries, state, blocked, dead_letter, tenant, kind, aggregate
) values (
  ?1, ?3, timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + ?4, ?5,
  timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)), timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)),
  1, 0, ?6, ?9 is not null, 0, ?7, ?8, ?9
)
