-- Records for people: names instead of numbers, and instants with a time zone. It reads the whole table unless a query
-- names an id.
create view ibid_records as
select r.id,
       case r.state
         when 1 then 'pending' when 2 then 'in_progress' when 3 then 'completed' when 4 then 'retryable'
         when 5 then 'unknown' else r.state::text
       end as state,
       r.flags & 1 <> 0 as dead_letter,
       r.flags & 2 <> 0 as owed,
       r.flags & 4 <> 0 as asynchronous,
       r.flags & 8 <> 0 as not_retained,
       r.flags & 128 <> 0 as tombstone,
       r.tenant, r.method, r.path, r.key,
       coalesce(r.attempt, 1) as attempt,
       coalesce(r.point, 0) as point,
       to_timestamp(r.created_at / 1e6) as created_at,
       to_timestamp(r.ran_at / 1e6) as ran_at,
       to_timestamp(r.completed_at / 1e6) as completed_at,
       to_timestamp(r.due_at / 1e6) as due_at,
       to_timestamp(r.expires_at / 1e6) as expires_at,
       to_timestamp(r.purge_at / 1e6) as purge_at,
       r.status,
       -- Header lines are bytes. Those outside of ASCII are shown as `\377`, so that none makes the query fail.
       encode(r.lines, 'escape') as lines,
       r.body,
       r.sealed_by,
       r.note,
       r.count::int8 & 4294967295 as count,
       lpad(to_hex(r.nonce), 16, '0') as nonce,
       lpad(to_hex(r.birth), 16, '0') as birth,
       lpad(to_hex(coalesce(r.owner, r.birth)), 16, '0') as owner,
       lpad(to_hex(r.policy), 16, '0') as policy
from ibid_record r;
