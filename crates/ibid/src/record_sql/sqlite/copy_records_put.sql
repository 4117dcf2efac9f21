-- Store the records of the JSON array ?1, in place of those with their ids. Bytes are hexadecimal digits. As in insert.sql, a
-- record with a due instant stays unordered until the writer orders new rows, and `reap_at` is left to the same pass. One that is
-- `unfinished` and never due is last in the order. A replaced record gets a new row, behind all that are ordered.
insert or replace into ibid_record (
  id, count, nonce, birth, owner, attempt, state, flags, policy, point,
  created_at, ran_at, completed_at, due_at, expires_at, purge_at, watch_at,
  fingerprint, tenant, method, path, key, note, status, lines, body, sealed_by
)
select unhex(v ->> 'id'), v ->> 'count', v ->> 'nonce', v ->> 'birth', v ->> 'owner', v ->> 'attempt', v ->> 'state',
       v ->> 'flags', v ->> 'policy', v ->> 'point', v ->> 'created_at', v ->> 'ran_at', v ->> 'completed_at', v ->> 'due_at',
       v ->> 'expires_at', v ->> 'purge_at',
       iif(v ->> 'unfinished' and v ->> 'due_at' is null, 9223372036854775807, null),
       unhex(v ->> 'fingerprint'), v ->> 'tenant', v ->> 'method', v ->> 'path', v ->> 'key', v ->> 'note', v ->> 'status',
       unhex(v ->> 'lines'), unhex(v ->> 'body'), v ->> 'sealed_by'
from (select x.value as v from json_each(?1) x)
