-- Rows as the hot path sends them: one array of rows is read several times faster than an array per column. Intervals, not
-- instants: the server's clock sets those. A type is never altered, for older processes send it as it was: another form gets
-- another name. Marks: 0 keeps an instant, 1 sets it to now, 2 clears it.
create type ibid_begin_row as (
  id bytea, nonce int8, birth int8, owner int8, attempt int8, lease_us int8, policy int8,
  due_us int8, expires_us int8, purge_us int8, point int4, state int2, flags int2, ran int2, completed int2,
  fingerprint bytea, tenant text, method text, path text, key text, note bytea
);
create type ibid_replace_row as (
  id bytea, was_count int8, was_nonce int8, nonce int8, birth int8, owner int8, attempt int8, lease_us int8, policy int8,
  due_us int8, expires_us int8, purge_us int8, point int4, state int2, flags int2, created int2, ran int2, completed int2,
  fingerprint bytea, method text, path text, note bytea,
  kind int4, data bytea             -- what is kept beside it, if anything
);
