-- Stores the records of the JSON array ?1, in place of those with their ids. Bytes are hexadecimal digits. A dead letter is last in
-- the order of the reaper, and a record that stays until it is settled is not in it.
replace into ibid_record (
  id, count, nonce, birth, owner, attempt, state, flags, policy, point,
  written_at, created_at, ran_at, completed_at, due_at, expires_at, purge_at, reap_at,
  fingerprint, tenant, method, path, `key`, note, status, `lines`, body, sealed_by
)
select unhex(x.id), x.`count`, x.nonce, x.birth, x.owner, x.attempt, x.state, x.flags, x.policy, x.point,
       timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)),
       x.created_at, x.ran_at, x.completed_at, x.due_at, x.expires_at, x.purge_at,
       if(x.flags & 1, 9223372036854775807, if(x.purge_at is null, null, x.reap_at)),
       unhex(x.fingerprint), x.tenant, x.method, x.path, x.`key`, x.note, x.status, unhex(x.`lines`), unhex(x.body), x.sealed_by
from json_table(convert(?1 using utf8mb4), '$[*]' columns (
  id char(32) path '$.id', `count` int unsigned path '$.count', nonce bigint path '$.nonce', birth bigint path '$.birth',
  owner bigint path '$.owner', attempt int unsigned path '$.attempt', state int path '$.state', flags int path '$.flags',
  policy bigint path '$.policy', point int unsigned path '$.point', created_at bigint path '$.created_at',
  ran_at bigint path '$.ran_at', completed_at bigint path '$.completed_at', due_at bigint path '$.due_at',
  expires_at bigint path '$.expires_at', purge_at bigint path '$.purge_at', reap_at bigint path '$.reap_at',
  fingerprint varchar(128) path '$.fingerprint', tenant longtext path '$.tenant', method longtext path '$.method',
  path longtext path '$.path', `key` longtext path '$.key', note longtext path '$.note', status int path '$.status',
  `lines` longtext path '$.lines', body longtext path '$.body', sealed_by longtext path '$.sealed_by'
)) x
