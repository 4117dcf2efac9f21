-- Counts policies that reap_policies.sql would remove now.
select 0, count(*)
from ibid_policy p
where p.seen_at + p.keep_us + 86400000000 < timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
         and not exists (
           select 1 from ibid_record r force index (ibid_record_reap)
           where r.policy = p.digest
             and (r.reap_at is null or r.reap_at <= timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) + 7200000000 or r.reap_at = 9223372036854775807)
         )
