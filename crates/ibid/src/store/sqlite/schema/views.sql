-- Records as operators read them: names instead of numbers, and instants as text (UTC).
create view ibid_records as
select lower(hex(r.id)) as id,
       r.tenant, r.method, r.path, r.key,
       case r.state when 1 then 'pending' when 2 then 'in_progress' when 3 then 'completed'
                    when 4 then 'retryable' when 5 then 'unknown' else r.state end as state,
       trim(iif(r.flags & 1, 'dead_letter ', '') || iif(r.flags & 2, 'owed ', '') || iif(r.flags & 4, 'asynchronous ', '')
            || iif(r.flags & 8, 'not_retained ', '') || iif(r.flags & 128, 'tombstone', '')) as flags,
       coalesce(r.attempt, 1) as attempt,
       coalesce(r.point, 0) as point,
       strftime('%Y-%m-%d %H:%M:%f', r.created_at / 1e6, 'unixepoch') as created_at,
       strftime('%Y-%m-%d %H:%M:%f', r.ran_at / 1e6, 'unixepoch') as ran_at,
       strftime('%Y-%m-%d %H:%M:%f', r.completed_at / 1e6, 'unixepoch') as completed_at,
       strftime('%Y-%m-%d %H:%M:%f', r.due_at / 1e6, 'unixepoch') as due_at,
       strftime('%Y-%m-%d %H:%M:%f', r.expires_at / 1e6, 'unixepoch') as expires_at,
       strftime('%Y-%m-%d %H:%M:%f', r.purge_at / 1e6, 'unixepoch') as purge_at,
       r.note, r.status,
       iif(r.sealed_by is null, cast(r.lines as text), null) as header_lines,
       iif(r.sealed_by is not null or r.lines is null, null, length(coalesce(r.body, b.data))) as body_bytes,
       r.policy, r.count, r.row
from ibid_record r
left join ibid_body b on b.slot = r.row * 131072 + 1 and b.birth = r.birth;
