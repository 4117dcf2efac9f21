-- Looks at the next ?2 policies after the number ?1. One that no record can name any more goes. ?3 is not needed here.
--
-- Each write of a record moves seen_at of its policy, at most once an hour. So all records under it have expired, and the
-- reaper has visited them, once keep_us and a day have passed since then. Those that stay nevertheless (dead letters, open
-- effects, records that run or wait) are where the index finds them.
select p.digest, p.seen_at + p.keep_us + 86400000000 < timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
         and not exists (
           select 1 from ibid_record r force index (ibid_record_reap)
           where r.policy = p.digest
             and (r.reap_at is null or r.reap_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + 7200000000 or r.reap_at = 9223372036854775807)
         ), 1
from ibid_policy p
where p.digest > ?1
order by p.digest
limit ?2
