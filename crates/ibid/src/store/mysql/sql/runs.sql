-- Returns finished records whose responses expire last: most of them are the ones that were begun last.
select r.policy, r.state, r.flags, r.ran_at, r.completed_at, r.method, r.path, r.note
from ibid_record r force index (ibid_record_reap)
where r.reap_at < 9223372036854775807 and r.flags & 128 = 0
order by r.reap_at desc
limit ?1
