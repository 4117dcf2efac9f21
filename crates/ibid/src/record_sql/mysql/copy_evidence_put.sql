-- Stores the evidence of the JSON array ?1, in its order. Bytes are hexadecimal digits. Of an event that is known
-- only these columns may have changed.
insert into ibid_evidence (source, event, record, owner, as_of, purge_at, open, nonce, found)
select x.source, x.event, unhex(x.record), x.owner, x.as_of, x.purge_at, x.open, 0, unhex(x.found)
from json_table(convert(?1 using utf8mb4), '$[*]' columns (
  n bigint path '$.n', source longtext path '$.source', event longtext path '$.event', record char(32) path '$.record',
  owner bigint path '$.owner', as_of bigint path '$.as_of', purge_at bigint path '$.purge_at', open int path '$.open',
  found longtext path '$.found'
)) x
order by x.n
on duplicate key update open = values(open), purge_at = values(purge_at)
