-- Looks through the next $3 records behind the id $2 for a fingerprint whose secret is not among $1: bytes 2 to 5 of a
-- fingerprint name it. Returns the last id, and the secret if one was found. A tombstone is never compared, so it needs none.
select (array_agg(p.id order by p.id desc))[1], (array_agg(p.secret) filter (where p.secret is not null and p.secret <> all ($1::bytea[])))[1]
from (
  select r.id, case when r.flags & 128 = 0 then substring(r.fingerprint from 2 for 4) end as secret
  from ibid_record r
  where r.id > $2::uuid
  order by r.id
  limit $3::int8
) p
