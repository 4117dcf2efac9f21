-- Inserts the records of the JSON array $1, none of which is stored. Bytes are hexadecimal digits.
insert into ibid_record (
  id, count, nonce, birth, owner, attempt, state, flags, policy, point,
  created_at, ran_at, completed_at, due_at, expires_at, purge_at, reap_at, watch_state, watch_at,
  fingerprint, tenant, method, path, key, note, status, lines, body, sealed_by
)
select x.id, x.count::bit(32)::int4, x.nonce, x.birth, x.owner, x.attempt::bit(32)::int4, x.state, x.flags, x.policy, x.point,
       x.created_at, x.ran_at, x.completed_at, x.due_at, x.expires_at, x.purge_at, x.reap_at,
       case when x.watched then x.state end,
       case when x.watched then coalesce(x.due_at, 9223372036854775807) end,
       decode(x.fingerprint, 'hex'), x.tenant, x.method, x.path, x.key, x.note, x.status,
       decode(x.lines, 'hex'), decode(x.body, 'hex'), x.sealed_by
from json_to_recordset($1::text::json) x (
  id uuid, count int8, nonce int8, birth int8, owner int8, attempt int8, state int2, flags int2, policy int8, point int4,
  created_at int8, ran_at int8, completed_at int8, due_at int8, expires_at int8, purge_at int8, reap_at int8,
  watched boolean, fingerprint text, tenant text, method text, path text, key text, note text, status int4, lines text, body text, sealed_by text
)
