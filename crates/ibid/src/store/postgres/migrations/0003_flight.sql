-- Rows as the hot path sends them: one array of rows is read several times faster than an array per column. They hold what a
-- fresh record and its finish do not share with all others; intervals, not instants, for the server's clock sets those. A type
-- is never altered, for older processes send it as it was: another form gets another name.
create type ibid_fresh_row as (
  id bytea, nonce int8, lease_us int8, keep_us int8, policy int8, state int2, flags int2,
  fingerprint bytea, tenant text, method text, path text, key text, note bytea
);
create type ibid_finish_row as (
  place tid, id bytea, was_nonce int8, nonce int8, expires_us int8, purge_us int8, state int2, flags int2, note bytea,
  kind int4, data bytea             -- what is kept beside it, if anything
);
