-- Takes one step of the reaper over records, from the instant $1 on, oldest first. A record past purge_at is deleted; one that is
-- only past expires_at becomes a tombstone; both lose their bodies. A locked row waits for the next round, a record with an open
-- effect for its effect, and a dead letter for an operator. Records of $3 are skipped. Returns how many became tombstones, how
-- many were deleted, the last instant, how many were visited, and how long ago the first of them could have been reaped.
--
-- A strip counts as a write, so a writer that read the row before loses.
--
-- A row that was written after this statement began waits for the next round: the statement does not see the bodies that came
-- with that write, so they would stay forever. That is what the comparison of nonces is for.
--
-- reap_at was set when the row was begun. A row that was finished later moves to its real instant, and one that is not finished
-- moves by an hour; if the lease scan has missed it, it enters the order of due records now. Every write but a first begin and
-- its finish sets both columns of that order, so only a row that is due can be missing there. Its policy counts as used: so a policy
-- that has not been used for long has no such row (reap_policies.sql). A step that a crash loses is repeated, so it does not wait
-- for the disk.
with clock as materialized (
  select (extract(epoch from statement_timestamp()) * 1000000)::int8 as now
  where set_config('synchronous_commit', 'off', true) is not null
),
visited as materialized (
  select r.id, r.created_at, r.birth, r.reap_at as at, r.purge_at <= (select now from clock) as goes, r.policy,
         r.purge_at is null as open,
         r.purge_at is null
           or case when r.flags & 128 <> 0 then r.purge_at else least(r.expires_at, r.purge_at) end > (select now from clock) as early
  from ibid_record r
  where r.reap_at >= $1::int8
    and r.reap_at <= (select now from clock)
    and r.id <> all ($3::uuid[])
    and (select x.nonce from ibid_record x where x.id = r.id) = r.nonce
    and (
      r.purge_at is null
      or case when r.flags & 128 <> 0 then r.purge_at else least(r.expires_at, r.purge_at) end > (select now from clock)
      or r.flags & 1 = 0
      and (
        select true from ibid_effect_call c
        where c.record = r.id and (select e.done_at is null from ibid_effect e where e.seq = c.seq)
        limit 1
      ) is null
    )
  order by r.reap_at
  limit $2::int8
  for update of r skip locked
),
stale as materialized (
  select b.tid
  from (select * from visited where not early) c
  cross join lateral (
    select x.ctid as tid from ibid_body x where x.born_at = c.created_at and x.birth = c.birth offset 0
  ) b
),
bodies as (
  delete from ibid_body b where b.ctid = any (array(select tid from stale))
),
payloads as (
  -- Payload and result of its effects are as personal as the response, so they go with it. All of these effects have ended.
  update ibid_effect_call c set payload = null, result = null
   where c.record = any (array(select id from visited where not early))
     and (c.payload is not null or c.result is not null)
     and (select e.done_at is not null from ibid_effect e where e.seq = c.seq)
),
put_off as (
  update ibid_record r
     set reap_at = coalesce(
           case when r.purge_at is not null then case when r.flags & 128 <> 0 then r.purge_at else least(r.expires_at, r.purge_at) end end,
           (select now from clock) + 3600000000
         ),
         watch_state = case when r.due_at is not null then r.state else r.watch_state end,
         watch_at = coalesce(r.due_at, r.watch_at)
   where r.id = any (array(select id from visited where early))
),
used as materialized (
  select p.digest
  from ibid_policy p
  where p.digest = any (array(select policy from visited where open)) and p.seen_at < (select now from clock) - 3600000000
  order by p.digest
  for no key update skip locked
),
noted as (
  update ibid_policy p set seen_at = (select now from clock) where p.digest = any (array(select digest from used))
),
stripped as (
  update ibid_record r
     set flags = r.flags | 128, count = r.count + 1, tenant = '', method = '', path = '', key = '', note = null, status = null,
         lines = null, body = null, sealed_by = null, reap_at = r.purge_at, watch_state = null, watch_at = null
   where r.id = any (array(select id from visited where not early and not goes))
  returning 1
),
removed as (
  delete from ibid_record r where r.id = any (array(select id from visited where not early and goes))
  returning 1
)
select (select count(*) from stripped), (select count(*) from removed), (select max(at) from visited),
       (select count(*) from visited), (select now - (select min(at) from visited where not early) from clock)
