-- The secrets that the next ?2 records behind the id ?1 need, each once, and the last id that has it. Bytes 2 to 5 of a fingerprint
-- name the secret. A tombstone is never compared, so it needs none.
select max(p.id), p.secret
from (
  select r.id, if(r.flags & 128, null, substring(r.fingerprint, 2, 4)) as secret
  from ibid_record r force index (primary)
  where r.id > ?1
  order by r.id
  limit ?2
) p
group by p.secret
