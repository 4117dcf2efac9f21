-- Inserts a record unless its id exists; written.sql tells. It waits for another transaction's uncommitted row as long as
-- innodb_lock_wait_timeout allows. ?1 to ?27 are those of `RecordColumns::params`; ?17, ?28 and ?29 are PostgreSQL's. Never
-- `insert ignore`, which also cuts values that are too long.
insert into ibid_record (
  id, count, nonce, birth, owner, attempt, state, flags, policy, point,
  written_at, created_at, ran_at, completed_at, due_at, expires_at, purge_at, reap_at,
  fingerprint, tenant, method, path, `key`, note, status, `lines`, body
)
values (
  ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10,
  timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)),
  timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)),
  if(?12 = 1, timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)), null),
  if(?13 = 1, timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)), null),
  timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + ?14,
  timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + ?15,
  timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + ?16,
  if(?8 & 1, 9223372036854775807,
     timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + least(?16, coalesce(?15, ?16))),
  ?18, ?19, ?20, ?21, ?22, ?23, ?24, if(?25 = 1, ?26, null), if(?25 = 1, ?27, null)
)
on duplicate key update id = id
