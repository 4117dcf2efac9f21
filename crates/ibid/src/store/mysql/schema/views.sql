-- Records for people: names instead of numbers, and instants as datetimes of UTC. It reads the whole table unless a query
-- names an id.
create or replace view ibid_records as
select lower(hex(r.id)) as id,
       case r.state
         when 1 then 'pending' when 2 then 'in_progress' when 3 then 'completed' when 4 then 'retryable'
         when 5 then 'unknown' else concat(r.state)
       end as state,
       r.flags & 1 <> 0 as dead_letter,
       r.flags & 2 <> 0 as owed,
       r.flags & 4 <> 0 as asynchronous,
       r.flags & 8 <> 0 as not_retained,
       r.flags & 128 <> 0 as tombstone,
       convert(r.tenant using utf8mb4) as tenant,
       convert(r.method using utf8mb4) as method,
       convert(r.path using utf8mb4) as path,
       convert(r.`key` using utf8mb4) as `key`,
       coalesce(r.attempt, 1) as attempt,
       coalesce(r.point, 0) as point,
       timestampadd(microsecond, r.created_at, '1970-01-01') as created_at,
       timestampadd(microsecond, r.ran_at, '1970-01-01') as ran_at,
       timestampadd(microsecond, r.completed_at, '1970-01-01') as completed_at,
       timestampadd(microsecond, r.due_at, '1970-01-01') as due_at,
       timestampadd(microsecond, r.expires_at, '1970-01-01') as expires_at,
       timestampadd(microsecond, r.purge_at, '1970-01-01') as purge_at,
       r.status,
       r.`lines`,
       r.body,
       convert(r.sealed_by using utf8mb4) as sealed_by,
       convert(r.note using utf8mb4) as note,
       r.count,
       lower(lpad(hex(r.nonce), 16, '0')) as nonce,
       lower(lpad(hex(r.birth), 16, '0')) as birth,
       lower(lpad(hex(coalesce(r.owner, r.birth)), 16, '0')) as owner,
       lower(lpad(hex(r.policy), 16, '0')) as policy
from ibid_record r;
